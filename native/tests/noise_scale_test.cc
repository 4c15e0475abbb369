#include "kf/noise_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kf/error.h"
#include "kf/norm.h"

namespace kf {
namespace {

using Gradients = std::vector<std::vector<double>>;

// Feeds one step of explicit per-rank gradients.
void feed(NoiseScale& estimator, const Gradients& gradients, double local_batch) {
  const auto n = static_cast<double>(gradients.size());
  std::vector<double> mean(gradients[0].size());
  double local_sq = 0;
  for (const auto& gradient : gradients) {
    local_sq += squared_norm(gradient) / n;
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += gradient[i] / n;
  }
  estimator.update(local_sq, squared_norm(mean), n * local_batch,
                   static_cast<int>(gradients.size()));
}

}  // namespace

// ray-project/ray#3907: nobody could reproduce published values; these two are by hand.
TEST(NoiseScale, MatchesClosedFormForTwoGradients) {
  NoiseScale estimator(0.9);
  feed(estimator, {{3, 0}, {1, 0}}, 8);
  EXPECT_NEAR(*estimator.sqr(), 3, 1e-12);
  EXPECT_NEAR(*estimator.var(), 16, 1e-12);
  EXPECT_NEAR(*estimator.value(), 16.0 / 3, 1e-12);
}

TEST(NoiseScale, MatchesClosedFormForFourGradients) {
  NoiseScale estimator(0.9);
  feed(estimator, {{1, 2}, {3, 4}, {5, 6}, {7, 8}}, 16);
  EXPECT_NEAR(*estimator.sqr(), 113.0 / 3, 1e-9);
  EXPECT_NEAR(*estimator.var(), 640.0 / 3, 1e-9);
  EXPECT_NEAR(*estimator.value(), 5.66372, 1e-5);
}

TEST(NoiseScale, IsZeroWhenAllGradientsAreEqual) {
  NoiseScale estimator(0.9);
  feed(estimator, {{1, 2}, {1, 2}}, 8);
  EXPECT_NEAR(*estimator.value(), 0, 1e-12);
}

// kingoflolz/mesh-transformer-jax#82: averages first, then the ratio; start-up bias corrected.
TEST(NoiseScale, IsTheRatioOfBiasCorrectedAverages) {
  NoiseScale estimator(0.9);
  // b=8, B=16 with var=16: mean_local = G^2 + var/16; sqr = 2 G^2 - mean_local = G^2 - 1
  estimator.update(5, 4, 16, 2);  // sqr 3, var 16
  estimator.update(3, 2, 16, 2);  // sqr 1, var 16
  EXPECT_NEAR(*estimator.value(), 8.2162, 1e-4);
  EXPECT_NEAR(*estimator.var(), 16, 1e-12);  // without the correction: 3.04
}

TEST(NoiseScale, IsUndefinedForOneGradientAndDefinedAgainForTwo) {
  NoiseScale estimator(0.9);
  EXPECT_EQ(estimator.why_undefined(), Undefined::no_data);
  EXPECT_FALSE(estimator.update(5, 5, 8, 1));
  EXPECT_EQ(estimator.why_undefined(), Undefined::single_gradient);
  EXPECT_FALSE(estimator.value().has_value());
  EXPECT_TRUE(estimator.update(5, 4, 16, 2));
  EXPECT_TRUE(estimator.value().has_value());
  EXPECT_FALSE(estimator.update(5, 5, 8, 1));
  EXPECT_FALSE(estimator.value().has_value());
}

TEST(NoiseScale, IsUndefinedWhenTheDenominatorIsNotPositive) {
  NoiseScale estimator(0);
  estimator.update(10, 4, 16, 2);  // sqr = 2*4 - 10 < 0
  EXPECT_EQ(estimator.why_undefined(), Undefined::non_positive);
  EXPECT_FALSE(estimator.value().has_value());
}

TEST(NoiseScale, CountsANegativeVarianceAsNoNoise) {
  NoiseScale estimator(0);
  estimator.update(4, 5, 16, 2);
  EXPECT_LT(*estimator.var(), 0);
  EXPECT_EQ(*estimator.value(), 0);
}

TEST(NoiseScale, IgnoresNonFiniteNorms) {
  NoiseScale estimator(0.9);
  estimator.update(5, 4, 16, 2);
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_FALSE(estimator.update(bad, 4, 16, 2));
    EXPECT_FALSE(estimator.update(5, bad, 16, 2));
  }
  EXPECT_NEAR(*estimator.value(), 16.0 / 3, 1e-12);
}

TEST(NoiseScale, StartsAfreshAfterReset) {
  NoiseScale estimator(0.9);
  estimator.update(500, 400, 16, 2);
  estimator.reset();
  EXPECT_EQ(estimator.why_undefined(), Undefined::no_data);
  estimator.update(5, 4, 16, 2);
  EXPECT_NEAR(*estimator.value(), 16.0 / 3, 1e-12);
}

TEST(NoiseScale, RefusesArgumentsOutOfRange) {
  EXPECT_THROW(NoiseScale(1.0), Error);
  EXPECT_THROW(NoiseScale(-0.1), Error);
  EXPECT_THROW(NoiseScale(std::nan("")), Error);
  NoiseScale estimator(0.5);
  EXPECT_THROW(estimator.update(1, 1, 0, 2), Error);
  EXPECT_THROW(estimator.update(1, 1, 8, 0), Error);
}

// g_i = mu + noise / sqrt(b): the estimate comes within 10 % of tr(Sigma) / |mu|^2.
TEST(NoiseScale, FindsTheNoiseOfSyntheticGradients) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  constexpr int kDim = 50;
  constexpr int kRanks = 4;
  constexpr double kBatch = 8;
  constexpr double kSigma = 2;
  NoiseScale estimator(0.999);
  for (int step = 0; step < 2000; ++step) {
    Gradients gradients(kRanks, std::vector<double>(kDim));
    for (auto& gradient : gradients) {
      for (double& g : gradient) g = 1 + kSigma * normal(random) / std::sqrt(kBatch);
    }
    feed(estimator, gradients, kBatch);
  }
  EXPECT_NEAR(*estimator.value(), kSigma * kSigma, 0.1 * kSigma * kSigma);
}

TEST(SquaredNorm, AddsInDoubleForAnyLength) {
  for (std::size_t n = 0; n < 40; ++n) {
    std::vector<float> values(n);
    double expected = 0;
    for (std::size_t i = 0; i < n; ++i) {
      values[i] = static_cast<float>(i) + 0.5F;
      expected += (static_cast<double>(i) + 0.5) * (static_cast<double>(i) + 0.5);
    }
    EXPECT_DOUBLE_EQ(squared_norm(values), expected) << n;
  }
  const std::vector<float> many(1 << 22, 1e-3F);  // a float sum would stall far below
  EXPECT_NEAR(squared_norm(many), (1 << 22) * 1e-6, 1e-5);
}

TEST(SquaredNorm, ShowsNonFiniteElements) {
  std::vector<double> values(20, 1.0);
  values[17] = std::nan("");
  EXPECT_TRUE(std::isnan(squared_norm(values)));
  values[17] = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(std::isinf(squared_norm(values)));
}

}  // namespace kf
