// Which schedule an operation runs: the session's own where it offers the collective, else the
// cheapest for the size of its buffer. Pure, so every rank selects the same.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kf/schedule.h"

namespace kf {

// Spec of the schedule for one operation. An `auto` with numbers of its own (kf/generators.h)
// keeps them, but for the size of the buffer; in a group, whose ranks may be any, it forgets
// about hosts. Throws Error{usage} for an unknown name.
std::string select_schedule(std::string_view session_spec, Collective collective,
                            std::int64_t buffer_bytes, int world_size, bool in_group = false);

}  // namespace kf
