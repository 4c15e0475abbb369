// Chooses a schedule for what was measured. Pure: the caller measures.
//
// Each function answers with a spec (kf/generators.h), so that a choice made on one rank can be
// agreed on and built by all.
// Threads: safe everywhere.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kf/cost.h"
#include "kf/schedule.h"

namespace kf {

struct Choice {
  std::string spec;
  double time_s = 0;  // by the model of kf/cost.h
};

// What `choose_schedule` compares, the cheapest first; equal ones in a fixed order.
//
// all_reduce: ring, recursive_doubling, halving_doubling, double_binary_tree and, over hosts
// with several ranks each, hierarchical; the other collectives: what suits them. clique and
// star are never compared: the model's ideal switch hides what n-1 senders at one port do to
// real ones. Hosts count where they all have ranks_per_host ranks; otherwise every link is one
// between hosts. Throws Error{usage} as build_schedule and cost do.
std::vector<Choice> choices(Collective collective, std::int64_t buffer_bytes, int world_size,
                            const Hosts& hosts);

// The cheapest of them.
std::string choose_schedule(Collective collective, std::int64_t buffer_bytes, int world_size,
                            const Hosts& hosts);
std::string choose_schedule(Collective collective, std::int64_t buffer_bytes, int world_size,
                            const Network& network);  // no hosts

// Tree of least total latency: spec from_parents(...), hung from the rank that is nearest to
// all others (least greatest distance along the tree).
//
// latency_s: [world_size, world_size] row-major, s, row = from, column = to; finite, >= 0. The
// two directions of a link are averaged; the diagonal is ignored.
// Throws Error{usage}: a size or a value outside these ranges, with row and column.
// Source: Prim's algorithm; KungFu's MST strategy (Mai et al., OSDI 2020).
std::string minimum_spanning_tree(std::span<const double> latency_s, int world_size);

// All-reduce for links of unequal bandwidth: the ring or the forest that keeps its busiest link
// busy for the shortest time.
//
// bytes_per_s: [world_size, world_size] row-major, row = from, column = to; finite, >= 0, where
// 0 means no link; the diagonal is ignored. The widest link of a rank stands for its port.
// Candidates: a ring through wide links (greedy from each rank, then 2-opt at the narrowest
// link); forests of 1, 2, 4 .. 32 and (up to 64 ranks) world_size trees, each grown by the
// attachment that loads links and ports least, given the trees before it. The time of a
// candidate is that of a long, pipelined buffer: greatest load of a link or port over its
// bandwidth. Heuristic: both problems are NP-hard. Throws Error{usage}: as above, or links that
// do not join all ranks in both directions.
std::string from_bandwidth(std::span<const double> bytes_per_s, int world_size);

}  // namespace kf
