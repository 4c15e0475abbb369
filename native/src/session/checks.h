// What must hold for the memory of every operation, also of one that was planned before. Pure.
#pragma once

#include <vector>

#include "kf/types.h"

namespace kf {

// Throws Error{usage} for a piece with elements and without memory.
void require_memory(const std::vector<Piece>& pieces);
// Pieces that share memory would be reduced into each other, in an order that is not fixed.
// Throws Error{usage} when some do.
void require_disjoint(const std::vector<Piece>& pieces);

}  // namespace kf
