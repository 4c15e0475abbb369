// Simple gradient noise scale from norms that training computes anyway. No I/O, no clock.
//
// Terms: b: samples behind one rank's gradient g_i (local batch); B: samples behind the
// averaged
//        gradient G (global batch); noise scale: tr(Sigma) / |true gradient|^2, in samples,
//        where Sigma is the covariance of one sample's gradient.
// Threads: one estimator belongs to one thread.
//
//   sqr = (B |G|^2 - b mean|g_i|^2) / (B - b)           unbiased for |true gradient|^2
//   var = (mean|g_i|^2 - |G|^2) / (1/b - 1/B)           unbiased for tr(Sigma)
//   noise scale = EMA(var) / EMA(sqr), both EMAs bias-corrected (divided by 1 - decay^k)
// Averages of var and sqr are taken before the ratio, because single values are wild and may be
// negative. A negative average of var means "no noise seen" and counts as 0.
// Source: McCandlish et al., "An empirical model of large-batch training", 2018, appendix A.1;
// bias correction: Kingma and Ba, "Adam", 2015, section 3.
#pragma once

#include <cstdint>
#include <optional>

namespace kf {

enum class Undefined : std::uint8_t {
  no,               // the value exists
  no_data,          // nothing was measured since the start or the last reset
  single_gradient,  // one gradient has no spread: needs >= 2 gradients (ranks)
  non_positive,     // the estimate of |true gradient|^2 is not positive
};

class NoiseScale {
 public:
  // decay in [0, 1): weight of the past. Throws Error{usage} outside of it.
  explicit NoiseScale(double decay);

  // Adds one step. mean_local_sq: mean over ranks of |g_i|^2; global_sq: |G|^2;
  // samples: B > 0; world_size: gradients averaged, b = B / world_size.
  // Returns false, and changes no average, for a non-finite norm or a world of one.
  // Throws Error{usage}: samples not positive or world_size < 1.
  bool update(double mean_local_sq, double global_sq, double samples, int world_size);

  // Forgets everything. Call it when the local batch or the world size is changed.
  void reset() noexcept;

  Undefined why_undefined() const noexcept;
  std::optional<double> value() const noexcept;  // noise scale, samples, >= 0
  std::optional<double> sqr() const noexcept;    // bias-corrected average, may be negative
  std::optional<double> var() const noexcept;    // bias-corrected average, may be negative

 private:
  double decay_;
  double weight_ = 0;  // 1 - decay^k after k steps
  double sqr_ = 0;
  double var_ = 0;
  bool single_ = false;  // the last step had one gradient
};

}  // namespace kf
