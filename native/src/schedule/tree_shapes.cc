// The trees behind the tree-like generators. What runs along them stands in tree.cc.
#include <algorithm>
#include <bit>
#include <numeric>

#include "schedule/tree.h"

namespace kf {

namespace {

using std::size_t;

constexpr int kMaxFanout = kMaxWorldSize;
constexpr int kMaxChunks = 1 << 20;  // of a forest; also keeps weight * world_size inside int

// Rank 0 is the root; rank v hangs from rank (v-1)/fanout, as in a heap.
std::vector<int> heap_parents(int n, int fanout) {
  std::vector<int> parents(static_cast<size_t>(n), 0);
  for (int v = 1; v < n; ++v) parents[static_cast<size_t>(v)] = (v - 1) / fanout;
  return parents;
}

// Odd ranks are leaves. A rank whose lowest set bit is b hangs from the rank with b cleared and
// the next bit set, or, where that is outside the world, from the rank with b cleared.
// Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast,
// reduction and scan", Parallel Computing 2009; numbering as in NCCL's trees.cc (ncclGetBtree).
std::vector<int> alternating_parents(int n) {
  std::vector<int> parents(static_cast<size_t>(n), 0);
  for (int v = 1; v < n; ++v) {
    const int bit = v & -v;
    const int up = (v ^ bit) | (bit << 1);
    parents[static_cast<size_t>(v)] = up < n ? up : v ^ bit;
  }
  return parents;
}

// Gives the place of each rank to another one: rank `of(v)` stands where v stood.
template <typename Renaming>
std::vector<int> renamed(const std::vector<int>& parents, Renaming of) {
  std::vector<int> moved(parents.size());
  for (size_t v = 0; v < parents.size(); ++v) {
    moved[static_cast<size_t>(of(static_cast<int>(v)))] = of(parents[v]);
  }
  return moved;
}

struct Hosts {
  int world_size;
  int ranks_per_host;  // the last host may have fewer

  int count() const { return (world_size + ranks_per_host - 1) / ranks_per_host; }
  int leader(int host) const { return host * ranks_per_host; }
};

// A binary tree over the hosts' first ranks, rooted at `root_host`, a star inside each host.
Tree binary_tree_of_stars(const Hosts& hosts, int root_host) {
  const int count = hosts.count();
  std::vector<int> parents(static_cast<size_t>(hosts.world_size));
  for (int rank = 0; rank < hosts.world_size; ++rank) {
    parents[static_cast<size_t>(rank)] = hosts.leader(rank / hosts.ranks_per_host);
  }
  const std::vector<int> over_hosts = heap_parents(count, 2);
  for (int place = 0; place < count; ++place) {
    const int host = (place + root_host) % count;
    const int up = (over_hosts[static_cast<size_t>(place)] + root_host) % count;
    parents[static_cast<size_t>(hosts.leader(host))] = hosts.leader(up);
  }
  return make_tree(std::move(parents));
}

Hosts read_hosts(Arguments& arguments, const Request& request) {
  return {request.world_size, arguments.integer("ranks_per_host", 1, 1, kMaxWorldSize)};
}

std::string with_hosts(std::string name, const Hosts& hosts) {
  if (hosts.ranks_per_host == 1) return name;
  return name + "(ranks_per_host=" + std::to_string(hosts.ranks_per_host) + ")";
}

Schedule along_tree(std::string name, std::vector<int> parents, const Request& request) {
  return along_trees(std::move(name), {{make_tree(std::move(parents)), 1}}, request);
}

void check_length(const std::vector<int>& parents, const Request& request) {
  if (static_cast<int>(parents.size()) != request.world_size) {
    throw_usage("parents must be given for each of the " + std::to_string(request.world_size) +
                " ranks, got " + std::to_string(parents.size()));
  }
}

// "3*(0,0,1)" or "(0,0,1)".
WeightedTree read_weighted_tree(const std::string& text, const Request& request) {
  WeightedTree weighted;
  const auto star = text.find('*');
  std::string parents = text;
  if (star != std::string::npos) {
    const std::vector<int> weight = parse_int_list(text.substr(0, star), "a tree's weight");
    if (weight.size() != 1 || weight[0] < 1 || weight[0] > kMaxChunks / request.world_size) {
      throw_usage("a tree's weight must be in [1, " +
                  std::to_string(kMaxChunks / request.world_size) + "], got " +
                  text.substr(0, star));
    }
    weighted.weight = weight[0];
    parents = text.substr(star + 1);
  }
  std::vector<int> values = parse_int_list(parents, "a parent");
  check_length(values, request);
  weighted.tree = make_tree(std::move(values));
  return weighted;
}

}  // namespace

Schedule build_binary_tree(Arguments&, const Request& request) {
  return along_tree("binary_tree", heap_parents(request.world_size, 2), request);
}

// Rank v hangs from v without its lowest set bit: classical binomial tree, whose rounds double
// the ranks reached.
Schedule build_binomial_tree(Arguments&, const Request& request) {
  std::vector<int> parents(static_cast<size_t>(request.world_size), 0);
  for (int v = 1; v < request.world_size; ++v) parents[static_cast<size_t>(v)] = v & (v - 1);
  return along_tree("binomial_tree", std::move(parents), request);
}

// Two trees, each for half of the buffer; the leaves of one are inner ranks of the other, so
// both directions of every port are used. The second is the first mirrored (even world) or
// shifted by one rank (odd world).
Schedule build_double_binary_tree(Arguments&, const Request& request) {
  const int n = request.world_size;
  const std::vector<int> first = alternating_parents(n);
  const auto other = [n](int v) { return n % 2 == 0 ? n - 1 - v : (v + 1) % n; };
  return along_trees("double_binary_tree",
                     {{make_tree(first), 1}, {make_tree(renamed(first, other)), 1}}, request);
}

Schedule build_tree(Arguments& arguments, const Request& request) {
  const int fanout = arguments.integer("fanout", 2, 1, kMaxFanout);
  return along_tree("tree(fanout=" + std::to_string(fanout) + ")",
                    heap_parents(request.world_size, fanout), request);
}

Schedule build_star(Arguments& arguments, const Request& request) {
  const int n = request.world_size;
  const int root = arguments.integer("root", 0, 0, n - 1);
  const std::string name = root == 0 ? "star" : "star(root=" + std::to_string(root) + ")";
  return along_tree(name, std::vector<int>(static_cast<size_t>(n), root), request);
}

Schedule build_binary_tree_star(Arguments& arguments, const Request& request) {
  const Hosts hosts = read_hosts(arguments, request);
  return along_trees(with_hosts("binary_tree_star", hosts),
                     {{binary_tree_of_stars(hosts, 0), 1}}, request);
}

// One tree a host, rooted at it, for one part of the buffer each: the load of being a root, an
// inner rank and a leaf goes round. KungFu's MULTI_BINARY_TREE_STAR (Mai et al., OSDI 2020).
Schedule build_multi_binary_tree_star(Arguments& arguments, const Request& request) {
  const Hosts hosts = read_hosts(arguments, request);
  std::vector<WeightedTree> trees;
  for (int host = 0; host < hosts.count(); ++host) {
    trees.push_back({binary_tree_of_stars(hosts, host), 1});
  }
  return along_trees(with_hosts("multi_binary_tree_star", hosts), trees, request);
}

// KungFu's set_tree: the caller's own tree.
Schedule build_from_parents(Arguments& arguments, const Request& request) {
  std::vector<int> parents;
  for (const std::string& text : arguments.unnamed()) {
    const std::vector<int> values = parse_int_list(text, "a parent");
    parents.insert(parents.end(), values.begin(), values.end());
  }
  check_length(parents, request);
  return along_tree("from_parents(" + join(parents) + ")", parents, request);
}

// The caller's own trees, each with the number of chunks it carries.
Schedule build_forest(Arguments& arguments, const Request& request) {
  std::vector<WeightedTree> trees;
  std::string name;
  int chunks = 0;
  for (const std::string& text : arguments.unnamed()) {
    trees.push_back(read_weighted_tree(text, request));
    const WeightedTree& last = trees.back();
    chunks += last.weight;
    if (chunks > kMaxChunks / request.world_size) {
      throw_usage("a forest's weights must add up to at most " +
                  std::to_string(kMaxChunks / request.world_size));
    }
    append(name, last.weight == 1 ? "" : std::to_string(last.weight) + "*", ",");
    name.append("(").append(join(last.tree.parent)).append(")");
  }
  if (trees.empty()) throw_usage("a forest needs at least one tree, as in forest((0,0,0))");
  return along_trees("forest(" + name + ")", trees, request);
}

}  // namespace kf
