// What a generator is, and the small tools they share.
//
// Every generator may assume world_size in [1, kMaxWorldSize], root inside the world and one of
// its own collectives: build_schedule has checked. It sets everything but the collective
// fields.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kf/schedule.h"
#include "schedule/spec.h"

namespace kf {

inline constexpr int kMaxWorldSize = 8192;

struct Request {
  Collective collective;
  int world_size;
  int root;
};

struct Generator {
  const char* name;
  std::vector<Collective> collectives;
  Schedule (*build)(Arguments& arguments, const Request& request);
};

// All of them, sorted by name.
const std::vector<Generator>& generators();

// Throws Error{usage} for an unknown name.
const Generator& find_generator(std::string_view name);

bool offers(const Generator& generator, Collective collective) noexcept;

// True for the collectives in which one rank differs from the others.
bool uses_root(Collective collective) noexcept;

// The one collective that a written-out schedule says it is for.
Collective collective_of_custom(Arguments& arguments, Collective fallback);

// A schedule without transfers.
Schedule empty_schedule(std::string name, const Request& request, int chunk_count);

// Adds a transfer to round `index`, making rounds up to it.
void add(Channel& channel, std::size_t index, const Transfer& transfer);

// The generators, by file.
Schedule build_ring(Arguments& arguments, const Request& request);                // ring.cc
Schedule build_recursive_doubling(Arguments& arguments, const Request& request);  // doubling.cc
Schedule build_halving_doubling(Arguments& arguments, const Request& request);    // doubling.cc
Schedule build_clique(Arguments& arguments, const Request& request);              // direct.cc
Schedule build_pairwise(Arguments& arguments, const Request& request);            // direct.cc
Schedule build_dissemination(Arguments& arguments, const Request& request);       // direct.cc
Schedule build_hierarchical(Arguments& arguments, const Request& request);  // hierarchical.cc
Schedule build_custom(Arguments& arguments, const Request& request);        // custom.cc
Schedule build_auto(Arguments& arguments, const Request& request);          // choose.cc
Schedule build_binary_tree(Arguments& arguments, const Request& request);   // tree_shapes.cc
Schedule build_binomial_tree(Arguments& arguments, const Request& request);
Schedule build_double_binary_tree(Arguments& arguments, const Request& request);
Schedule build_tree(Arguments& arguments, const Request& request);
Schedule build_star(Arguments& arguments, const Request& request);
Schedule build_binary_tree_star(Arguments& arguments, const Request& request);
Schedule build_multi_binary_tree_star(Arguments& arguments, const Request& request);
Schedule build_from_parents(Arguments& arguments, const Request& request);
Schedule build_forest(Arguments& arguments, const Request& request);

}  // namespace kf
