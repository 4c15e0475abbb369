// Builds schedules from their text. Pure functions: no I/O, no clock, no randomness, so every
// rank that builds the same text gets the same schedule.
//
// Terms: spec: text that denotes a schedule, `name` or `name(argument,key=value,...)`;
//        generator: the function behind a name; host: ranks_per_host neighbouring ranks.
// Threads: all functions are safe everywhere.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kf/schedule.h"

namespace kf {

// Schedule of `collective` over `world_size` ranks, denoted by `spec`. Its name is the
// canonical spec: arguments in a fixed order, without spaces, without those that equal their
// default.
//
// root: rank that has (broadcast, scatter) or gets (reduce, gather) the data; other collectives
// ignore it. A tree's own root, as in star(root=1), counts for all_reduce and barrier only: for
// the rooted collectives the tree is turned so that it hangs from `root`.
// auto(buffer_bytes=,latency_s=,bytes_per_s=,reduce_bytes_per_s=,ranks_per_host=,host_latency_s=,
// host_bytes_per_s=) builds, and is named after,
// what choose_schedule picks; without numbers it assumes 4 MiB, 50 us, 1.25e9 B/s and free
// reduction. With one rank the schedule has no transfers. What each generator costs:
// docs/algorithms.md. Throws Error{usage}: unknown name or argument, world_size outside [1,
// 8192], root outside the world, or a generator that does not offer the collective (the text
// lists those that do).
Schedule build_schedule(std::string_view spec, Collective collective, int world_size,
                        int root = 0);

// Every generator's name, sorted.
std::vector<std::string> generator_names();

// Collectives that a spec, or all specs with a generator's name, can be built for.
// Throws Error{usage} for an unknown name.
std::vector<Collective> collectives_of(std::string_view spec);

// Throws Error{usage} if the spec denotes no schedule for this world size, whatever the
// collective.
void check_spec(std::string_view spec, int world_size);

// Any schedule written out as a spec, `custom(...)`; build_schedule makes the same transfers of
// it, without rounds and channels that are empty.
std::string custom_spec(const Schedule& schedule);

}  // namespace kf
