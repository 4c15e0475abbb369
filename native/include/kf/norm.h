// Squared norms of gradients, accumulated in float64.
//
// Threads: pure functions.
// The order of additions is fixed and does not depend on the machine's vector width, so ranks
// that hold the same gradient bits get the same norm bits.
#pragma once

#include <span>

namespace kf {

// Sum of squares of all elements; 0 for none. NaN or infinity where an element is.
double squared_norm(std::span<const float> values) noexcept;
double squared_norm(std::span<const double> values) noexcept;

}  // namespace kf
