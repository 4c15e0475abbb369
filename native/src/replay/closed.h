// The closed form of a collective whose ranks keep in step: a sum over rounds.
#pragma once

#include <optional>

#include "replay/program.h"

namespace kf::replay {

// Seconds from the common start of all ranks until all are done, if they keep in step: no
// shared links beyond ports, equal ports, one lane, and in each round every rank sends one
// message and receives one, all of the same size. Then no two messages meet and all tiers
// give this sum. Nothing otherwise. Ask before the program drops its messages.
std::optional<double> closed_form(const Program& program);

}  // namespace kf::replay
