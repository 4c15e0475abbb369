#include "kf/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "kf/cost.h"
#include "kf/error.h"
#include "kf/generators.h"

namespace kf {
namespace {

constexpr double kRate = 1e9;                           // bytes per second
constexpr double kLatency = 50e-6;                      // seconds
constexpr std::int64_t kBytes = 64 * 3 * 5 * 7 * 1024;  // divides evenly by many world sizes

double last(const std::vector<double>& times) {
  return *std::max_element(times.begin(), times.end());
}

Schedule all_reduce(const std::string& spec, int n) {
  return build_schedule(spec, Collective::all_reduce, n);
}

double replay_s(const std::string& spec, int n, const ReplayOptions& options = {}) {
  const Replay replay(all_reduce(spec, n), uniform_fabric(n, kRate, kLatency), kBytes, options);
  return last(replay.run(std::vector<double>(static_cast<std::size_t>(n), 0.0)));
}

TEST(Replay, RingMatchesItsClosedForm) {
  for (const int n : {2, 3, 4, 8, 16, 60, 64}) {
    const double expected =
        2.0 * (n - 1) * (kLatency + static_cast<double>(kBytes) / n / kRate);
    for (const Tier tier : {Tier::recurrence, Tier::fluid}) {
      EXPECT_NEAR(replay_s("ring", n, {.tier = tier}), expected, 1e-9 * expected) << n;
    }
  }
}

TEST(Replay, HalvingDoublingMatchesItsClosedFormAtPowersOfTwo) {
  for (const int n : {2, 4, 8, 16, 32, 64}) {
    const double bytes = 2.0 * (n - 1) / n * static_cast<double>(kBytes);
    const double expected = 2.0 * std::log2(n) * kLatency + bytes / kRate;
    for (const Tier tier : {Tier::recurrence, Tier::fluid}) {
      EXPECT_NEAR(replay_s("halving_doubling", n, {.tier = tier}), expected, 1e-9 * expected)
          << n;
    }
  }
}

TEST(Replay, StarRootTakesInAndSendsOutEverything) {
  for (const int n : {2, 5, 16}) {
    const double expected = 2.0 * (kLatency + (n - 1) * static_cast<double>(kBytes) / kRate);
    for (const Tier tier : {Tier::recurrence, Tier::fluid}) {
      EXPECT_NEAR(replay_s("star", n, {.tier = tier}), expected, 1e-9 * expected) << n;
    }
  }
}

struct Priced {
  double replayed_s;
  double cost_s;
};

Priced price(const std::string& spec, int n) {
  const Schedule schedule = all_reduce(spec, n);
  Fabric fabric = uniform_fabric(n, kRate, kLatency);
  fabric.reduce_bytes_per_s = 3e9;
  const std::int64_t bytes = 64 * 1024 * static_cast<std::int64_t>(n);
  const Replay replay(schedule, fabric, bytes, {.tier = Tier::recurrence});
  return {last(replay.run(std::vector<double>(static_cast<std::size_t>(n), 0.0))),
          cost(schedule, bytes, {kLatency, kRate, 3e9}).time_s};
}

// kf::cost keeps all ranks in step. Where they are in step anyway both say the same.
TEST(Replay, EqualsTheCostModelWhereRanksKeepInStep) {
  std::vector<std::pair<std::string, int>> cases;
  for (int n = 2; n <= 64; ++n) {
    const bool power_of_two = (n & (n - 1)) == 0;
    const bool full_tree = (n & (n + 1)) == 0;
    cases.emplace_back("ring", n);
    cases.emplace_back("star", n);
    if (power_of_two) cases.emplace_back("recursive_doubling", n);
    if (power_of_two) cases.emplace_back("halving_doubling", n);
    if (full_tree) cases.emplace_back("binary_tree", n);
  }
  for (const auto& [spec, n] : cases) {
    const Priced p = price(spec, n);
    EXPECT_NEAR(p.replayed_s, p.cost_s, 1e-9 * p.cost_s) << spec << " n=" << n;
  }
}

// A rank that need not wait for the others' rounds may only gain by it.
TEST(Replay, NeverExceedsTheCostModel) {
  for (const char* spec :
       {"ring", "recursive_doubling", "halving_doubling", "binary_tree", "star"}) {
    for (int n = 2; n <= 64; ++n) {
      const Priced p = price(spec, n);
      EXPECT_LE(p.replayed_s, p.cost_s * (1 + 1e-12)) << spec << " n=" << n;
      EXPECT_GE(p.replayed_s, 0.5 * p.cost_s) << spec << " n=" << n;
    }
  }
}

TEST(Replay, AStragglerDelaysTheRingByExactlyItsDelay) {
  const int n = 8;
  const Replay replay(all_reduce("ring", n), uniform_fabric(n, kRate, kLatency), kBytes);
  std::vector<double> ready(n, 0.0);
  const double base = last(replay.run(ready));
  ready[3] = 0.25;
  EXPECT_NEAR(last(replay.run(ready)), base + 0.25, 1e-12);
}

TEST(Replay, TiersAgreeOnOneLaneWithUnevenStarts) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> delay(0.0, 0.004);
  for (const int n : {2, 3, 5, 8, 17, 32}) {
    std::vector<double> ready(static_cast<std::size_t>(n));
    for (double& r : ready) r = delay(random);
    const Fabric net = uniform_fabric(n, kRate, kLatency);
    const Replay fast(all_reduce("ring", n), net, kBytes, {.tier = Tier::recurrence});
    const Replay fluid(all_reduce("ring", n), net, kBytes, {.tier = Tier::fluid});
    EXPECT_NEAR(last(fast.run(ready)), last(fluid.run(ready)), 1e-9) << n;
  }
}

// Batched sharing is near the exact one, for one run where few flows share a link. (Forests of
// trees are chaotic, so means are compared: tests/simulation/test_tiers.py.)
TEST(Replay, BatchedSharingIsWithinOnePercentOfFluid) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> delay(0.0, 0.01);
  for (const char* spec : {"clique", "halving_doubling", "double_binary_tree", "binary_tree",
                           "hierarchical(intra=ring,inter=ring,ranks_per_host=4)"}) {
    for (const int n : {8, 16, 31, 64}) {
      for (const std::int64_t segment : {0, 65536}) {
        std::vector<double> ready(static_cast<std::size_t>(n));
        for (double& r : ready) r = delay(random);
        const auto finish = [&](Tier tier) {
          return last(Replay(all_reduce(spec, n), uniform_fabric(n, kRate, kLatency), kBytes,
                             {.segment_bytes = segment, .tier = tier})
                          .run(ready));
        };
        const double exact = finish(Tier::fluid);
        EXPECT_NEAR(finish(Tier::batched), exact, 0.01 * exact) << spec << " n=" << n;
      }
    }
  }
}

TEST(Replay, WithoutBatchingBothMaxMinEnginesAgree) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> delay(0.0, 0.003);
  for (const char* spec : {"clique", "halving_doubling", "double_binary_tree", "binary_tree"}) {
    const int n = 12;
    Fabric net = uniform_fabric(n, kRate, kLatency);
    for (int host = 0; host < n; ++host) net.rack_of_host.push_back(host / 4);
    net.rack_bytes_per_s = 1.5 * kRate;
    net.background.push_back({-1, 3, 2});
    std::vector<double> ready(static_cast<std::size_t>(n));
    for (double& r : ready) r = delay(random);
    const Replay fluid(all_reduce(spec, n), net, kBytes, {.tier = Tier::fluid});
    const Replay batched(all_reduce(spec, n), net, kBytes,
                         {.tier = Tier::batched, .batch_fraction = 0.0});
    const std::vector<double> a = fluid.run(ready), b = batched.run(ready);
    for (std::size_t rank = 0; rank < a.size(); ++rank) {
      EXPECT_NEAR(a[rank], b[rank], 1e-8) << spec << " rank " << rank;
    }
  }
}

TEST(Replay, TheSameStartsAtAnotherTimeGiveTheSameDurations) {
  const Replay replay(all_reduce("clique", 5), uniform_fabric(5, kRate, kLatency), kBytes);
  const std::vector<double> now{0.0, 0.25, 0.0, 0.125, 0.5};
  std::vector<double> later = now;
  for (double& time : later) time += 1024.0;
  const std::vector<double> a = replay.run(now), b = replay.run(later);
  for (std::size_t rank = 0; rank < 5; ++rank) EXPECT_DOUBLE_EQ(a[rank] + 1024.0, b[rank]);
  EXPECT_NE(replay.run(std::vector<double>(5, 0.0)), a);
}

TEST(Replay, TheAutomaticTierIsExactOrBoundsItsError) {
  const auto choice = [](const char* spec, int n, std::int64_t segment_bytes) {
    const Replay replay(all_reduce(spec, n), uniform_fabric(n, kRate, 0.0), kBytes,
                        {.segment_bytes = segment_bytes});
    return std::pair(replay.tier(), replay.tier_error());
  };
  EXPECT_EQ(choice("ring", 64, 0), std::pair(Tier::recurrence, 0.0));
  EXPECT_EQ(choice("ring", 64, 65536), std::pair(Tier::recurrence, 0.0));
  EXPECT_EQ(choice("binary_tree", 64, 0), std::pair(Tier::fluid, 0.0));
  EXPECT_EQ(choice("multi_binary_tree_star", 64, 0), std::pair(Tier::batched, 0.015));
  EXPECT_EQ(choice("clique", 200, 0), std::pair(Tier::batched, 0.03));
}

TEST(Replay, SegmentsPipelineATreeTowardsItsPortBound) {
  const int n = 32;
  const double whole = replay_s("binary_tree", n);
  const double pipelined = replay_s("binary_tree", n, {.segment_bytes = 65536});
  const double bound = 3.0 * static_cast<double>(kBytes) / kRate;  // an inner rank's ingress
  EXPECT_LT(pipelined, 0.5 * whole);
  EXPECT_GE(pipelined, bound);
  EXPECT_LT(pipelined, 1.5 * bound);
}

TEST(Replay, MoreBandwidthIsNeverSlower) {
  for (const char* spec : {"ring", "binary_tree", "halving_doubling", "clique", "star"}) {
    for (const Tier tier : {Tier::recurrence, Tier::fluid}) {
      double before = std::numeric_limits<double>::infinity();
      for (const double rate : {1e8, 2e8, 5e8, 1e9, 4e9}) {
        const Replay replay(all_reduce(spec, 12), uniform_fabric(12, rate, kLatency), kBytes,
                            {.segment_bytes = 65536, .tier = tier});
        const double now = last(replay.run(std::vector<double>(12, 0.0)));
        EXPECT_LE(now, before) << spec;
        before = now;
      }
    }
  }
}

TEST(Replay, BytesInEqualBytesOut) {
  for (const char* spec : {"ring", "binary_tree", "clique"}) {
    const Replay replay(all_reduce(spec, 7), uniform_fabric(7, kRate, 0.0), 1001,
                        {.unit_bytes = 4});
    const auto sum = [](const std::vector<std::int64_t>& v) {
      return std::accumulate(v.begin(), v.end(), std::int64_t{0});
    };
    EXPECT_EQ(sum(replay.bytes_sent()), sum(replay.bytes_received()));
    EXPECT_EQ(sum(replay.bytes_sent()), 2 * 6 * 1001) << spec;
  }
}

TEST(Replay, ReductionTimeIsPaidOncePerReceivedReduce) {
  const int n = 4;
  Fabric net = uniform_fabric(n, kRate, kLatency);
  net.reduce_bytes_per_s = 2e9;
  const double base = replay_s("ring", n);
  const double expected = base + (n - 1) * static_cast<double>(kBytes) / n / 2e9;
  for (const Tier tier : {Tier::recurrence, Tier::fluid}) {
    const Replay replay(all_reduce("ring", n), net, kBytes, {.tier = tier});
    EXPECT_NEAR(last(replay.run(std::vector<double>(n, 0.0))), expected, 1e-9 * expected);
  }
}

TEST(Replay, RanksOfOneHostShareItsPortAndLocalTrafficDoesNot) {
  Fabric net = uniform_fabric(4, kRate, 0.0);
  net.host_of_rank = {0, 0, 1, 1};
  net.egress_bytes_per_s.resize(2);
  net.ingress_bytes_per_s.resize(2);
  // recursive doubling: round 1 inside the hosts (free), round 2 across: two messages a port.
  const Replay replay(all_reduce("recursive_doubling", 4), net, kBytes);
  EXPECT_NEAR(last(replay.run(std::vector<double>(4, 0.0))), 2.0 * kBytes / kRate, 1e-9);
}

TEST(Replay, AnOverSubscribedRackSlowsTheRingToTheUplinkShare) {
  const int n = 8;
  Fabric net = uniform_fabric(n, kRate, 0.0);
  for (int host = 0; host < n; ++host) net.rack_of_host.push_back(host % 2);
  net.rack_bytes_per_s = kRate;  // four hosts behind each uplink: 4:1
  const Replay replay(all_reduce("ring", n), net, kBytes);
  EXPECT_EQ(replay.tier(), Tier::fluid);
  const double expected = 2.0 * (n - 1) * static_cast<double>(kBytes) / n / (kRate / 4);
  EXPECT_NEAR(last(replay.run(std::vector<double>(n, 0.0))), expected, 1e-9 * expected);
}

TEST(Replay, BackgroundFlowsTakeTheirFairShareOfAPort) {
  Fabric net = uniform_fabric(2, kRate, 0.0);
  net.background.push_back({-1, 0, 3});  // three outside connections into host 0
  const Replay replay(build_schedule("star", Collective::reduce, 2), net, kBytes);
  EXPECT_NEAR(last(replay.run(std::vector<double>(2, 0.0))), 4.0 * kBytes / kRate, 1e-9);
}

TEST(Replay, RefusesWhatItCannotModelAndSaysWhy) {
  Fabric racks = uniform_fabric(4, kRate, 0.0);
  racks.rack_of_host = {0, 0, 1, 1};
  racks.rack_bytes_per_s = kRate;
  EXPECT_THROW(Replay(all_reduce("ring", 4), racks, kBytes, {.tier = Tier::recurrence}), Error);
  EXPECT_THROW(Replay(all_reduce("ring", 4), uniform_fabric(5, kRate, 0.0), kBytes), Error);
  EXPECT_THROW(Replay(all_reduce("ring", 4), uniform_fabric(4, 0.0, 0.0), kBytes), Error);
  EXPECT_THROW(Replay(all_reduce("ring", 4), uniform_fabric(4, kRate, -1.0), kBytes), Error);
  const Replay replay(all_reduce("ring", 4), uniform_fabric(4, kRate, 0.0), kBytes);
  EXPECT_THROW(replay.run(std::vector<double>(3, 0.0)), Error);
  EXPECT_THROW(replay.run(std::vector<double>(4, NAN)), Error);
}

TEST(Replay, OneRankIsDoneWhenReady) {
  const Replay replay(all_reduce("ring", 1), uniform_fabric(1, kRate, kLatency), kBytes);
  EXPECT_EQ(replay.run(std::vector<double>{1.5}), std::vector<double>{1.5});
}

}  // namespace
}  // namespace kf
