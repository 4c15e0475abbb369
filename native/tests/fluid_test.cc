#include "kf/fluid.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kf/error.h"

namespace kf {
namespace {

TEST(Fluid, TwoFlowsShareALinkThenTheLongerGetsItAll) {
  FluidNetwork net({100.0});
  const int link[] = {0};
  const int shorter = net.add(link, 100.0, 0.0);
  const int longer = net.add(link, 300.0, 0.0);
  EXPECT_DOUBLE_EQ(net.rate_bytes_per_s(longer, 0.0), 50.0);
  std::vector<int> done;
  EXPECT_DOUBLE_EQ(net.next_completion_s(0.0), 2.0);
  net.take_completed(2.0, done);
  EXPECT_EQ(done, std::vector<int>{shorter});
  EXPECT_DOUBLE_EQ(net.next_completion_s(2.0), 4.0);
  net.take_completed(4.0, done);
  EXPECT_EQ(net.active(), 0);
  EXPECT_TRUE(std::isinf(net.next_completion_s(4.0)));
}

TEST(Fluid, TheClassicThreeFlowExample) {
  // One flow over both links, one on each: the long one gets half of the tighter link.
  FluidNetwork net({10.0, 30.0});
  const int both[] = {0, 1};
  const int first[] = {0};
  const int second[] = {1};
  const int long_flow = net.add(both, 1e6, 0.0);
  const int a = net.add(first, 1e6, 0.0);
  const int b = net.add(second, 1e6, 0.0);
  EXPECT_DOUBLE_EQ(net.rate_bytes_per_s(long_flow, 0.0), 5.0);
  EXPECT_DOUBLE_EQ(net.rate_bytes_per_s(a, 0.0), 5.0);
  EXPECT_DOUBLE_EQ(net.rate_bytes_per_s(b, 0.0), 25.0);
}

// Random arrivals and departures: after each the rates equal the slow reference's, and no link
// carries more than its capacity.
TEST(Fluid, RatesEqualTheReferenceUnderRandomChanges) {
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 30; ++trial) {
    std::vector<double> capacity(12);
    for (double& c : capacity) c = 1.0 + static_cast<double>(random() % 50);
    FluidNetwork net(capacity);
    std::vector<std::vector<int>> paths;  // by flow id; empty: free
    double now = 0.0;
    for (int step = 0; step < 60; ++step) {
      if (random() % 3 != 0 || net.active() == 0) {
        std::vector<int> path;
        for (int link = 0; link < 12 && path.size() < 3; ++link) {
          if (random() % 4 == 0) path.push_back(link);
        }
        if (path.empty()) path.push_back(static_cast<int>(random() % 12));
        const auto id = static_cast<std::size_t>(
            net.add(path, 1.0 + static_cast<double>(random() % 1000), now));
        if (id >= paths.size()) paths.resize(id + 1);
        paths[id] = path;
      } else {
        std::vector<int> done;
        now = net.next_completion_s(now);
        net.take_completed(now, done);
        ASSERT_FALSE(done.empty());
        for (const int id : done) paths[static_cast<std::size_t>(id)].clear();
      }
      std::vector<std::vector<int>> live;
      std::vector<int> ids;
      for (std::size_t id = 0; id < paths.size(); ++id) {
        if (paths[id].empty()) continue;
        live.push_back(paths[id]);
        ids.push_back(static_cast<int>(id));
      }
      const std::vector<double> expected = max_min_rates(capacity, live);
      std::vector<double> used(capacity.size(), 0.0);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const double rate = net.rate_bytes_per_s(ids[i], now);
        EXPECT_NEAR(rate, expected[i], 1e-9 * expected[i]);
        for (const int link : live[i]) used[static_cast<std::size_t>(link)] += rate;
      }
      for (std::size_t l = 0; l < capacity.size(); ++l)
        EXPECT_LE(used[l], capacity[l] * (1 + 1e-9));
    }
  }
}

TEST(Fluid, AnEndlessFlowNeverCompletesButTakesItsShare) {
  FluidNetwork net({8.0});
  const int link[] = {0};
  net.add(link, std::numeric_limits<double>::infinity(), 0.0);
  EXPECT_TRUE(std::isinf(net.next_completion_s(0.0)));
  net.add(link, 4.0, 1.0);
  EXPECT_DOUBLE_EQ(net.next_completion_s(1.0), 2.0);
}

TEST(Fluid, RefusesBadLinksAndFlows) {
  EXPECT_THROW(FluidNetwork({1.0, 0.0}), Error);
  FluidNetwork net({1.0});
  const int missing[] = {1};
  const int twice[] = {0, 0};
  EXPECT_THROW(net.add(missing, 1.0, 0.0), Error);
  EXPECT_THROW(net.add(twice, 1.0, 0.0), Error);
  EXPECT_THROW(net.add({}, 1.0, 0.0), Error);
  const int link[] = {0};
  EXPECT_THROW(net.add(link, 0.0, 0.0), Error);
}

}  // namespace
}  // namespace kf
