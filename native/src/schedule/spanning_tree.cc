#include <algorithm>
#include <cmath>
#include <limits>

#include "kf/choose.h"
#include "schedule/generator.h"
#include "schedule/matrix.h"
#include "schedule/tree.h"

namespace kf {

namespace {

using std::size_t;

double both_ways(const Matrix& latency, int a, int b) {
  return (latency.at(a, b) + latency.at(b, a)) / 2;
}

// Prim's algorithm from rank 0; of equal links the one to the lowest rank comes first.
Tree least_tree(const Matrix& latency) {
  const int n = latency.n();
  std::vector<int> parents(static_cast<size_t>(n), 0);
  std::vector<double> reach(static_cast<size_t>(n), std::numeric_limits<double>::infinity());
  std::vector<bool> inside(static_cast<size_t>(n), false);
  reach[0] = 0;
  for (int added = 0; added < n; ++added) {
    int next = -1;
    for (int v = 0; v < n; ++v) {
      const auto i = static_cast<size_t>(v);
      if (!inside[i] && (next < 0 || reach[i] < reach[static_cast<size_t>(next)])) next = v;
    }
    inside[static_cast<size_t>(next)] = true;
    for (int v = 0; v < n; ++v) {
      const auto i = static_cast<size_t>(v);
      if (inside[i] || both_ways(latency, next, v) >= reach[i]) continue;
      reach[i] = both_ways(latency, next, v);
      parents[i] = next;
    }
  }
  return make_tree(std::move(parents));
}

double farthest_s(const Tree& tree, const Matrix& latency) {
  std::vector<int> order = leaves_first(tree);
  std::reverse(order.begin(), order.end());
  std::vector<double> distance(order.size(), 0);
  double farthest = 0;
  for (const int v : order) {
    const int parent = tree.parent[static_cast<size_t>(v)];
    if (parent == v) continue;
    double& own = distance[static_cast<size_t>(v)];
    own = distance[static_cast<size_t>(parent)] + both_ways(latency, parent, v);
    farthest = std::max(farthest, own);
  }
  return farthest;
}

}  // namespace

Matrix::Matrix(std::span<const double> values, int n, const std::string& what)
    : values_(values.begin(), values.end()), n_(n) {
  if (n < 1 || n > kMaxWorldSize) {
    throw_usage("world_size must be in [1, " + std::to_string(kMaxWorldSize) + "], got " +
                std::to_string(n));
  }
  if (values.size() != static_cast<size_t>(n) * static_cast<size_t>(n)) {
    throw_usage(what + " must hold " + std::to_string(n) + " x " + std::to_string(n) +
                " values, got " + std::to_string(values.size()));
  }
  for (int from = 0; from < n; ++from) {
    for (int to = 0; to < n; ++to) {
      if (from == to || (std::isfinite(at(from, to)) && at(from, to) >= 0)) continue;
      throw_usage(what + " must be finite and >= 0, got " + std::to_string(at(from, to)) +
                  " from rank " + std::to_string(from) + " to rank " + std::to_string(to));
    }
  }
}

std::string minimum_spanning_tree(std::span<const double> latency_s, int world_size) {
  const Matrix latency(latency_s, world_size, "latency_s");
  const Tree tree = least_tree(latency);
  Tree best = tree;
  for (int root = 1; root < world_size; ++root) {
    const Tree turned = reroot(tree, root);
    if (farthest_s(turned, latency) < farthest_s(best, latency)) best = turned;
  }
  return "from_parents(" + join(best.parent) + ")";
}

}  // namespace kf
