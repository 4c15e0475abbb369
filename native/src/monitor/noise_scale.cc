#include "kf/noise_scale.h"

#include <cmath>
#include <string>

#include "kf/error.h"

namespace kf {

NoiseScale::NoiseScale(double decay) : decay_(decay) {
  if (!(decay >= 0 && decay < 1)) {
    throw Error(ErrorCode::usage, "decay must be in [0, 1), got " + std::to_string(decay));
  }
}

bool NoiseScale::update(double mean_local_sq, double global_sq, double samples,
                        int world_size) {
  if (!(samples > 0) || world_size < 1) {
    throw Error(ErrorCode::usage, "noise scale needs samples > 0 and world_size >= 1, got " +
                                      std::to_string(samples) + " and " +
                                      std::to_string(world_size));
  }
  single_ = world_size == 1;
  if (single_ || !std::isfinite(mean_local_sq) || !std::isfinite(global_sq)) return false;
  const double local = samples / world_size;
  const double sqr = (samples * global_sq - local * mean_local_sq) / (samples - local);
  const double var = (mean_local_sq - global_sq) / (1 / local - 1 / samples);
  sqr_ = decay_ * sqr_ + (1 - decay_) * sqr;
  var_ = decay_ * var_ + (1 - decay_) * var;
  weight_ = decay_ * weight_ + (1 - decay_);
  return true;
}

void NoiseScale::reset() noexcept {
  weight_ = sqr_ = var_ = 0;
  single_ = false;
}

Undefined NoiseScale::why_undefined() const noexcept {
  if (single_) return Undefined::single_gradient;
  if (weight_ == 0) return Undefined::no_data;
  return sqr_ > 0 ? Undefined::no : Undefined::non_positive;
}

std::optional<double> NoiseScale::value() const noexcept {
  if (why_undefined() != Undefined::no) return std::nullopt;
  return var_ > 0 ? var_ / sqr_ : 0.0;  // the bias corrections cancel
}

std::optional<double> NoiseScale::sqr() const noexcept {
  if (single_ || weight_ == 0) return std::nullopt;
  return sqr_ / weight_;
}

std::optional<double> NoiseScale::var() const noexcept {
  if (single_ || weight_ == 0) return std::nullopt;
  return var_ / weight_;
}

}  // namespace kf
