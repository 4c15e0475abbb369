// Which schedule an operation runs: the session's own where it offers the collective, else the
// cheapest for the size of its buffer. Pure, so every rank selects the same.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kf/schedule.h"

namespace kf {

// Spec of the schedule for one operation. An `auto` with numbers of its own (kf/generators.h)
// keeps them, but for the size of the buffer. For a group, `members` are its ranks in the
// session (empty: all ranks), and what the spec says of hosts is said of theirs: ranks of one
// host, as many ranks of each of several hosts in a row, or ranks without such an order, for
// which only links between hosts count. Throws Error{usage} for an unknown name.
std::string select_schedule(std::string_view session_spec, Collective collective,
                            std::int64_t buffer_bytes, int world_size,
                            std::span<const int> members = {});

}  // namespace kf
