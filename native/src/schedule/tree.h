// Rooted trees over ranks, and the schedules that run along them.
//
// Terms: tree: parent of each rank, the root being its own parent; forest: trees that each
// carry
//        a part of the buffer; weight: how many chunks a tree carries.
#pragma once

#include <string>
#include <vector>

#include "schedule/generator.h"

namespace kf {

struct Tree {
  std::vector<int> parent;  // of each rank; parent[root] == root
  int root = 0;
};

struct WeightedTree {
  Tree tree;
  int weight = 1;  // >= 1
};

// Throws Error{usage}, naming the ranks, unless `parents` is a tree over all its ranks.
Tree make_tree(std::vector<int> parents);

// The same edges, hanging from another rank.
Tree reroot(const Tree& tree, int root);

// Ranks so that each stands behind all its descendants; the root is last.
std::vector<int> leaves_first(const Tree& tree);

// Longest way down from each rank, in edges; leaves have 0.
std::vector<int> heights(const Tree& tree);

// A collective along the trees, one channel a tree. Rank v speaks to its parent in round
// height(v), the first in which its subtree has reported; on the way down the rounds run
// backwards. So a tree of height h needs h rounds one way, 2h for all_reduce.
Schedule along_trees(std::string name, const std::vector<WeightedTree>& trees,
                     const Request& request);

}  // namespace kf
