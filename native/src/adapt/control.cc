#include "kf/control.h"

#include <cmath>
#include <limits>
#include <string>

#include "kf/error.h"

namespace kf {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kNothing = -std::numeric_limits<double>::infinity();  // identity of max

// Offsets into sums; a count follows each of the first six.
enum Sum : std::size_t {
  kStep = 0,
  kCompute = 2,
  kComm = 4,
  kBytes = 6,
  kLoss = 8,
  kNorm = 10,
  kNonfinite = 12,
  kSamples = 13,
};
enum Max : std::size_t { kDigest = 0, kSlowestStep = 2, kSlowestCompute = 3 };

void check_length(std::size_t sums, std::size_t maxes) {
  if (sums >= kControlSums && maxes >= kControlMaxes) return;
  throw Error(ErrorCode::usage, "control vectors must hold at least " +
                                    std::to_string(kControlSums) + " sums and " +
                                    std::to_string(kControlMaxes) + " maxes, got " +
                                    std::to_string(sums) + " and " + std::to_string(maxes));
}

void put(std::span<double> sums, Sum at, double value, double weight = 1) {
  const bool measured = !std::isnan(value) && !std::isnan(weight);
  sums[at] = measured ? value * weight : 0;
  sums[at + 1] = measured ? weight : 0;
}

double mean(std::span<const double> sums, Sum at) {
  return sums[at + 1] > 0 ? sums[at] / sums[at + 1] : kNan;
}

double or_nan(double maximum) {
  return maximum == kNothing ? kNan : maximum;
}
double or_nothing(double measured) {
  return std::isnan(measured) ? kNothing : measured;
}

}  // namespace

void encode_local(const LocalStep& local, const std::array<double, 2>& digest_words,
                  std::span<double> sums, std::span<double> maxes) {
  check_length(sums.size(), maxes.size());
  put(sums, kStep, local.step_s);
  put(sums, kCompute, local.compute_s);
  put(sums, kComm, local.comm_s);
  put(sums, kBytes, local.comm_bytes);
  put(sums, kLoss, local.loss, local.samples);
  encode_norm(local.grad_sq_norm, sums);
  sums[kSamples] = std::isnan(local.samples) ? 0 : local.samples;
  maxes[kDigest] = digest_words[0];
  maxes[kDigest + 1] = digest_words[1];
  maxes[kSlowestStep] = or_nothing(local.step_s);
  maxes[kSlowestCompute] = or_nothing(local.compute_s);
}

void encode_norm(double grad_sq_norm, std::span<double> sums) {
  check_length(sums.size(), kControlMaxes);
  const bool nonfinite = std::isinf(grad_sq_norm);
  put(sums, kNorm, nonfinite ? kNan : grad_sq_norm);
  sums[kNonfinite] = nonfinite ? 1 : 0;
}

ClusterStep decode_cluster(std::span<const double> sums, std::span<const double> maxes,
                           int world_size) {
  check_length(sums.size(), maxes.size());
  const bool every_norm = sums[kNorm + 1] == static_cast<double>(world_size);
  return {.step_s = or_nan(maxes[kSlowestStep]),
          .compute_s = or_nan(maxes[kSlowestCompute]),
          .mean_step_s = mean(sums, kStep),
          .mean_compute_s = mean(sums, kCompute),
          .mean_comm_s = mean(sums, kComm),
          .mean_comm_bytes = mean(sums, kBytes),
          .loss = mean(sums, kLoss),
          .mean_grad_sq_norm = every_norm ? mean(sums, kNorm) : kNan,
          .samples = sums[kSamples],
          .nonfinite_ranks = sums[kNonfinite]};
}

}  // namespace kf
