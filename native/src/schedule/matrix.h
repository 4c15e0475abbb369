// A square matrix of measurements, one value for each ordered pair of ranks.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace kf {

class Matrix {
 public:
  // Throws Error{usage} unless there are n*n values and all off the diagonal are finite, >= 0.
  Matrix(std::span<const double> values, int n, const std::string& what);

  int n() const noexcept { return n_; }
  double at(int from, int to) const {
    return values_[static_cast<std::size_t>(from) * static_cast<std::size_t>(n_) +
                   static_cast<std::size_t>(to)];
  }

 private:
  std::vector<double> values_;
  int n_;
};

}  // namespace kf
