#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "kf/choose.h"
#include "schedule/generator.h"
#include "schedule/matrix.h"
#include "schedule/tree.h"

namespace kf {

namespace {

using std::size_t;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kMostTrees = 32;
constexpr int kMostRanksForATreeEach = 64;

struct Candidate {
  std::string spec;
  double s_per_byte = kNever;  // of the buffer, when the pipeline is full
};

double busy(double load, double bytes_per_s) {
  return bytes_per_s > 0 ? load / bytes_per_s : kNever;
}

// ---- Ring
// -------------------------------------------------------------------------------------

class RingSearch {
 public:
  explicit RingSearch(const Matrix& width) : width_(width) {}

  Candidate best() {
    std::vector<int> best;
    for (int start = 0; start < width_.n(); ++start) {
      std::vector<int> order = greedy(start);
      if (best.empty() || narrowest(order) > narrowest(best)) best = std::move(order);
    }
    while (improve(best)) {
    }
    std::rotate(best.begin(), std::find(best.begin(), best.end(), 0), best.end());
    const double n = width_.n();
    const bool plain = std::is_sorted(best.begin(), best.end());
    return {plain ? "ring" : "ring(order=(" + join(best) + "))",
            busy(2 * (n - 1) / n, narrowest(best))};
  }

 private:
  double link(const std::vector<int>& order, size_t i) const {
    return width_.at(order[i], order[(i + 1) % order.size()]);
  }

  double narrowest(const std::vector<int>& order) const {
    double least = kNever;
    for (size_t i = 0; i < order.size(); ++i) least = std::min(least, link(order, i));
    return least;
  }

  std::vector<int> greedy(int start) const {
    std::vector<bool> used(static_cast<size_t>(width_.n()), false);
    std::vector<int> order = {start};
    used[static_cast<size_t>(start)] = true;
    while (static_cast<int>(order.size()) < width_.n()) {
      int next = -1;
      for (int v = 0; v < width_.n(); ++v) {
        if (used[static_cast<size_t>(v)]) continue;
        if (next < 0 || width_.at(order.back(), v) > width_.at(order.back(), next)) next = v;
      }
      used[static_cast<size_t>(next)] = true;
      order.push_back(next);
    }
    return order;
  }

  // 2-opt: replaces the narrowest link by turning a stretch of the ring that begins behind it.
  // True if the narrowest link became wider, so it ends after at most n*n widths.
  bool improve(std::vector<int>& order) const {
    const size_t n = order.size();
    const double before = narrowest(order);
    size_t worst = 0;
    while (link(order, worst) != before) ++worst;
    std::rotate(order.begin(), order.begin() + static_cast<std::ptrdiff_t>((worst + 1) % n),
                order.end());
    for (size_t end = 2; end < n; ++end) {
      std::vector<int> turned = order;
      std::reverse(turned.begin(), turned.begin() + static_cast<std::ptrdiff_t>(end));
      if (narrowest(turned) <= before) continue;
      order = std::move(turned);
      return true;
    }
    return false;
  }

  const Matrix& width_;
};

// ---- Forest
// -----------------------------------------------------------------------------------

// What the trees found so far put on each link and port, in parts of the buffer.
class Loads {
 public:
  explicit Loads(const Matrix& width)
      : width_(width),
        link_(static_cast<size_t>(width.n()) * static_cast<size_t>(width.n()), 0),
        out_(static_cast<size_t>(width.n()), 0),
        in_(out_),
        port_out_(out_),
        port_in_(out_) {
    for (int a = 0; a < width.n(); ++a) {
      for (int b = 0; b < width.n(); ++b) {
        if (a == b) continue;
        widen(port_out_, a, width.at(a, b));
        widen(port_in_, b, width.at(a, b));
      }
    }
  }

  // Time per byte of the busiest link or port that an edge between a and b would load.
  double with_edge(int a, int b, double part) const {
    return std::max(one_way(a, b, part), one_way(b, a, part));
  }

  void add_edge(int a, int b, double part) {
    for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
      link_[index(from, to)] += part;
      out_[static_cast<size_t>(from)] += part;
      in_[static_cast<size_t>(to)] += part;
    }
  }

  double busiest() const {
    double most = 0;
    for (int a = 0; a < width_.n(); ++a) {
      for (int b = 0; b < width_.n(); ++b) {
        if (a != b && link_[index(a, b)] > 0) most = std::max(most, one_way(a, b, 0));
      }
    }
    return most;
  }

 private:
  size_t index(int from, int to) const {
    return static_cast<size_t>(from) * static_cast<size_t>(width_.n()) +
           static_cast<size_t>(to);
  }

  static void widen(std::vector<double>& ports, int rank, double width) {
    double& port = ports[static_cast<size_t>(rank)];
    port = std::max(port, width);
  }

  double one_way(int from, int to, double part) const {
    const auto f = static_cast<size_t>(from);
    const auto t = static_cast<size_t>(to);
    return std::max({busy(link_[index(from, to)] + part, width_.at(from, to)),
                     busy(out_[f] + part, port_out_[f]), busy(in_[t] + part, port_in_[t])});
  }

  const Matrix& width_;
  std::vector<double> link_;
  std::vector<double> out_;
  std::vector<double> in_;
  std::vector<double> port_out_;
  std::vector<double> port_in_;
};

// Grows one tree from its root; each step makes the attachment that hurts least. One that
// leaves the busiest link or port as busy as it was hurts nothing; of equals the one nearest to
// the root is taken, which keeps trees shallow.
std::optional<std::vector<int>> grow(Loads& loads, int n, int root, double part) {
  std::vector<int> parents(static_cast<size_t>(n), -1);
  std::vector<int> depth(static_cast<size_t>(n), 0);
  std::vector<int> inside = {root};
  parents[static_cast<size_t>(root)] = root;
  double busiest = loads.busiest();
  while (static_cast<int>(inside.size()) < n) {
    int child = -1;
    int parent = -1;
    double least = kNever;
    for (const int u : inside) {
      for (int v = 0; v < n; ++v) {
        if (parents[static_cast<size_t>(v)] >= 0) continue;
        const double s_per_byte = std::max(loads.with_edge(u, v, part), busiest);
        const bool nearer = parent >= 0 && s_per_byte == least &&
                            depth[static_cast<size_t>(u)] < depth[static_cast<size_t>(parent)];
        if (s_per_byte < least || nearer) {
          least = s_per_byte;
          child = v;
          parent = u;
        }
      }
    }
    if (child < 0) return std::nullopt;  // no link leads out of the tree
    loads.add_edge(parent, child, part);
    busiest = least;
    parents[static_cast<size_t>(child)] = parent;
    depth[static_cast<size_t>(child)] = depth[static_cast<size_t>(parent)] + 1;
    inside.push_back(child);
  }
  return parents;
}

Candidate pack_trees(const Matrix& width, int trees) {
  const int n = width.n();
  Loads loads(width);
  std::string text;
  for (int t = 0; t < trees; ++t) {
    const auto parents = grow(loads, n, t * n / trees, 1.0 / trees);
    if (!parents) return {};
    append(text, "", ",");
    text.append("(").append(join(*parents)).append(")");
  }
  if (trees == 1) return {"from_parents" + text, loads.busiest()};
  return {"forest(" + text + ")", loads.busiest()};
}

}  // namespace

std::string from_bandwidth(std::span<const double> bytes_per_s, int world_size) {
  const Matrix width(bytes_per_s, world_size, "bytes_per_s");
  if (world_size == 1) return "ring";
  Candidate best = RingSearch(width).best();
  const auto consider = [&](int trees) {
    Candidate other = pack_trees(width, trees);
    // A tie, up to rounding, goes to the simpler schedule, which comes first.
    if (other.s_per_byte < best.s_per_byte * (1 - 1e-9)) best = std::move(other);
  };
  for (int trees = 1; trees <= std::min(world_size, kMostTrees); trees *= 2) consider(trees);
  if (world_size <= kMostRanksForATreeEach) consider(world_size);
  if (best.s_per_byte == kNever) {
    throw_usage("bytes_per_s: the links wider than 0 do not join all ranks in both directions");
  }
  return best.spec;
}

}  // namespace kf
