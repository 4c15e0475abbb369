#include "schedule/tree.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace kf {

namespace {

using std::size_t;

// Chunks of the whole schedule that belong to one tree.
struct Part {
  int offset;  // first chunk of the tree within a group of `stride` chunks
  int weight;  // chunks of the tree in each group
  int stride;  // chunks of all trees together
};

class TreeRounds {
 public:
  TreeRounds(const Tree& tree, Part part) : tree_(tree), part_(part), height_(heights(tree)) {}

  void up(Combine combine) {
    for (int v = 0; v < n(); ++v) {
      if (v != tree_.root) send_all(round_of(v), v, parent(v), combine);
    }
  }

  // first_round: the round after which the root is ready.
  void down(size_t first_round) {
    for (int v = 0; v < n(); ++v) {
      if (v != tree_.root) send_all(first_round + mirrored(v), parent(v), v, Combine::replace);
    }
  }

  void gather() {
    const auto below = subtrees();
    for (int v = 0; v < n(); ++v) {
      if (v != tree_.root) send_owned(round_of(v), v, parent(v), below[static_cast<size_t>(v)]);
    }
  }

  void scatter() {
    const auto below = subtrees();
    for (int v = 0; v < n(); ++v) {
      if (v != tree_.root) send_owned(mirrored(v), parent(v), v, below[static_cast<size_t>(v)]);
    }
  }

  size_t one_way_rounds() const { return round_of(tree_.root); }
  Channel take() { return std::move(channel_); }

 private:
  int n() const { return static_cast<int>(tree_.parent.size()); }
  int parent(int v) const { return tree_.parent[static_cast<size_t>(v)]; }
  size_t round_of(int v) const { return static_cast<size_t>(height_[static_cast<size_t>(v)]); }
  size_t mirrored(int v) const { return one_way_rounds() - 1 - round_of(v); }

  void send_all(size_t round, int src, int dst, Combine combine) {
    add(channel_, round, {src, dst, part_.offset, part_.weight, combine});
  }

  // This tree's part of what the `owners` (sorted) own, in as few runs as possible.
  void send_owned(size_t round, int src, int dst, const std::vector<int>& owners) {
    for (size_t i = 0; i < owners.size();) {
      size_t end = i + 1;
      const bool joinable = part_.weight == part_.stride;
      while (joinable && end < owners.size() && owners[end] == owners[end - 1] + 1) ++end;
      const int runs = static_cast<int>(end - i);
      add(channel_, round,
          {src, dst, owners[i] * part_.stride + part_.offset, runs * part_.weight,
           Combine::replace});
      i = end;
    }
  }

  std::vector<std::vector<int>> subtrees() const {
    std::vector<std::vector<int>> below(static_cast<size_t>(n()));
    for (const int v : leaves_first(tree_)) {
      auto& own = below[static_cast<size_t>(v)];
      own.push_back(v);
      std::sort(own.begin(), own.end());
      if (v == tree_.root) continue;
      auto& up = below[static_cast<size_t>(parent(v))];
      up.insert(up.end(), own.begin(), own.end());
    }
    return below;
  }

  const Tree& tree_;
  Part part_;
  std::vector<int> height_;
  Channel channel_;
};

std::string rank_text(int rank) {
  return "rank " + std::to_string(rank);
}

bool rooted(Collective collective) {
  return collective != Collective::all_reduce && collective != Collective::barrier;
}

Channel channel_of(const Tree& tree, Part part, Collective collective) {
  TreeRounds rounds(tree, part);
  switch (collective) {
    case Collective::all_reduce:
    case Collective::barrier:
      rounds.up(Combine::reduce);
      rounds.down(rounds.one_way_rounds());
      break;
    case Collective::reduce:
      rounds.up(Combine::reduce);
      break;
    case Collective::broadcast:
      rounds.down(0);
      break;
    case Collective::gather:
      rounds.gather();
      break;
    case Collective::scatter:
      rounds.scatter();
      break;
    case Collective::reduce_scatter:
    case Collective::all_gather:
    case Collective::all_to_all:
      break;  // not offered
  }
  return rounds.take();
}

}  // namespace

Tree make_tree(std::vector<int> parents) {
  const int n = static_cast<int>(parents.size());
  Tree tree{std::move(parents), -1};
  for (int v = 0; v < n; ++v) {
    const int parent = tree.parent[static_cast<size_t>(v)];
    if (parent < 0 || parent >= n) {
      throw_usage(rank_text(v) + "'s parent must be in [0, " + std::to_string(n) + "), got " +
                  std::to_string(parent));
    }
    if (parent != v) continue;
    if (tree.root >= 0) {
      throw_usage("a tree has one root (its own parent), but " + rank_text(tree.root) +
                  " and " + rank_text(v) + " are both");
    }
    tree.root = v;
  }
  if (tree.root < 0) throw_usage("a tree needs a root: one rank that is its own parent");
  const std::vector<int> order = leaves_first(tree);
  if (static_cast<int>(order.size()) == n) return tree;
  std::vector<bool> reached(static_cast<size_t>(n), false);
  for (const int v : order) reached[static_cast<size_t>(v)] = true;
  const auto stray = std::find(reached.begin(), reached.end(), false) - reached.begin();
  throw_usage(rank_text(static_cast<int>(stray)) +
              " is on a cycle of parents: it never meets root " + std::to_string(tree.root));
}

Tree reroot(const Tree& tree, int root) {
  Tree turned = tree;
  turned.root = root;
  int child = root;
  int v = root;
  while (true) {  // turn every edge on the way from the new root to the old one
    const int parent = tree.parent[static_cast<size_t>(v)];
    turned.parent[static_cast<size_t>(v)] = child;
    if (parent == v) return turned;
    child = v;
    v = parent;
  }
}

std::vector<int> leaves_first(const Tree& tree) {
  const size_t n = tree.parent.size();
  std::vector<int> waiting_for(n, 0);
  for (size_t v = 0; v < n; ++v) {
    if (static_cast<int>(v) != tree.root) ++waiting_for[static_cast<size_t>(tree.parent[v])];
  }
  std::vector<int> order;
  for (size_t v = 0; v < n; ++v) {
    if (waiting_for[v] == 0) order.push_back(static_cast<int>(v));
  }
  for (size_t i = 0; i < order.size(); ++i) {
    const int v = order[i];
    const int parent = tree.parent[static_cast<size_t>(v)];
    if (parent != v && --waiting_for[static_cast<size_t>(parent)] == 0) order.push_back(parent);
  }
  return order;
}

std::vector<int> heights(const Tree& tree) {
  std::vector<int> height(tree.parent.size(), 0);
  for (const int v : leaves_first(tree)) {
    if (v == tree.root) continue;
    int& up = height[static_cast<size_t>(tree.parent[static_cast<size_t>(v)])];
    up = std::max(up, height[static_cast<size_t>(v)] + 1);
  }
  return height;
}

Schedule along_trees(std::string name, const std::vector<WeightedTree>& trees,
                     const Request& request) {
  const bool owned =
      request.collective == Collective::gather || request.collective == Collective::scatter;
  const bool barrier = request.collective == Collective::barrier;
  const size_t used = barrier ? 1 : trees.size();  // a token needs one tree only
  int stride = 0;
  for (size_t t = 0; t < used; ++t) stride += barrier ? 1 : trees[t].weight;
  Schedule schedule =
      empty_schedule(std::move(name), request, owned ? stride * request.world_size : stride);
  int offset = 0;
  for (size_t t = 0; t < used; ++t) {
    const int weight = barrier ? 1 : trees[t].weight;
    const Tree tree =
        rooted(request.collective) ? reroot(trees[t].tree, request.root) : trees[t].tree;
    schedule.channels.push_back(
        channel_of(tree, Part{offset, weight, stride}, request.collective));
    offset += weight;
  }
  return schedule;
}

}  // namespace kf
