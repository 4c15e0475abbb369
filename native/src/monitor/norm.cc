#include "kf/norm.h"

#include <cstdint>

#include "executor/kernels.h"

namespace kf {

double squared_norm(std::span<const float> values) noexcept {
  return active_kernels().squares32(values.data(), static_cast<std::int64_t>(values.size()));
}
double squared_norm(std::span<const double> values) noexcept {
  return active_kernels().squares64(values.data(), static_cast<std::int64_t>(values.size()));
}

}  // namespace kf
