#include "kf/norm.h"

#include <array>
#include <cstddef>

namespace kf {
namespace {

// Eight independent partial sums: compilers may not reorder float additions by themselves, and
// one sum would wait for itself on every addition.
template <class T>
double sum_of_squares(std::span<const T> values) noexcept {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> lanes{};
  const std::size_t whole = values.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (std::size_t i = whole; i < values.size(); ++i) {
    const auto value = static_cast<double>(values[i]);
    lanes[i - whole] += value * value;
  }
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) +
         ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

}  // namespace

double squared_norm(std::span<const float> values) noexcept {
  return sum_of_squares(values);
}
double squared_norm(std::span<const double> values) noexcept {
  return sum_of_squares(values);
}

}  // namespace kf
