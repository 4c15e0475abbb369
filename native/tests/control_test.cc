#include "kf/control.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kf/error.h"

namespace kf {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

ClusterStep exchange(const std::vector<LocalStep>& ranks) {
  std::vector<double> sums(kControlSums);
  std::vector<double> maxes(kControlMaxes, -kInfinity);
  for (const LocalStep& local : ranks) {
    std::vector<double> s(kControlSums, kNan);  // every word must be written
    std::vector<double> m(kControlMaxes, kNan);
    encode_local(local, {1, -1}, s, m);
    for (std::size_t i = 0; i < s.size(); ++i) sums[i] += s[i];
    for (std::size_t i = 0; i < m.size(); ++i) maxes[i] = std::max(maxes[i], m[i]);
  }
  return decode_cluster(sums, maxes, static_cast<int>(ranks.size()));
}

}  // namespace

TEST(Control, MeansMaximaAndSampleWeightedLoss) {
  const ClusterStep seen =
      exchange({{1, 0.5, 0.5, 100, 2, 4, 10}, {3, 2.5, 0.25, 100, 5, 8, 30}});
  EXPECT_DOUBLE_EQ(seen.step_s, 3);
  EXPECT_DOUBLE_EQ(seen.compute_s, 2.5);
  EXPECT_DOUBLE_EQ(seen.mean_step_s, 2);
  EXPECT_DOUBLE_EQ(seen.mean_comm_s, 0.375);
  EXPECT_DOUBLE_EQ(seen.mean_comm_bytes, 100);
  EXPECT_DOUBLE_EQ(seen.loss, (2.0 * 10 + 5 * 30) / 40);
  EXPECT_DOUBLE_EQ(seen.mean_grad_sq_norm, 6);
  EXPECT_DOUBLE_EQ(seen.samples, 40);
  EXPECT_DOUBLE_EQ(seen.nonfinite_ranks, 0);
}

TEST(Control, AnUnmeasuredFieldOfOneRankLeavesTheOthers) {
  const ClusterStep seen =
      exchange({{kNan, kNan, kNan, kNan, kNan, kNan, 10}, {3, 2, 1, 100, 5, 8, 30}});
  EXPECT_DOUBLE_EQ(seen.step_s, 3);
  EXPECT_DOUBLE_EQ(seen.mean_step_s, 3);
  EXPECT_DOUBLE_EQ(seen.loss, 5);
  EXPECT_TRUE(std::isnan(seen.mean_grad_sq_norm)) << "a mean over some ranks is biased";
}

TEST(Control, NothingMeasuredIsNanAndNoNanTravels) {
  const ClusterStep seen = exchange({{kNan, kNan, kNan, kNan, kNan, kNan, 1}});
  EXPECT_TRUE(std::isnan(seen.step_s));
  EXPECT_TRUE(std::isnan(seen.mean_comm_s));
  EXPECT_TRUE(std::isnan(seen.loss));
  EXPECT_DOUBLE_EQ(seen.nonfinite_ranks, 0);
}

TEST(Control, CountsRanksWithANonFiniteGradient) {
  const ClusterStep seen = exchange(
      {{1, 1, 1, 1, 1, kInfinity, 1}, {1, 1, 1, 1, 1, 2, 1}, {1, 1, 1, 1, 1, kInfinity, 1}});
  EXPECT_DOUBLE_EQ(seen.nonfinite_ranks, 2);
  EXPECT_TRUE(std::isnan(seen.mean_grad_sq_norm));
}

TEST(Control, RefusesShortVectors) {
  std::vector<double> sums(kControlSums - 1);
  std::vector<double> maxes(kControlMaxes);
  EXPECT_THROW(encode_local({}, {0, 0}, sums, maxes), Error);
  EXPECT_THROW(decode_cluster(sums, maxes, 1), Error);
}

}  // namespace kf
