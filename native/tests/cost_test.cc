#include "kf/cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kf/choose.h"
#include "kf/error.h"
#include "kf/generators.h"

namespace kf {
namespace {

const Network kNetwork{1e-3, 1e3, 1e4};

Cost cost_of(const char* spec, int n, std::int64_t bytes, std::int64_t unit_bytes = 1) {
  return cost(build_schedule(spec, Collective::all_reduce, n), bytes, kNetwork, unit_bytes);
}

TEST(Cost, OfARingIsItsClosedForm) {
  const Cost ring = cost_of("ring", 4, 4000);
  EXPECT_EQ(ring.rounds, 6);
  EXPECT_THAT(ring.bytes_sent, ::testing::Each(6000));
  EXPECT_NEAR(ring.time_s, 6 * (1e-3 + 1000 / 1e3) + 3 * 1000 / 1e4, 1e-12);
}

TEST(Cost, OfAStarSharesTheRootsPort) {
  const Cost star = cost_of("star", 4, 4000);
  EXPECT_THAT(star.bytes_sent, ::testing::ElementsAre(12000, 4000, 4000, 4000));
  EXPECT_NEAR(star.time_s, 2 * (1e-3 + 12000 / 1e3) + 12000 / 1e4, 1e-12);
}

TEST(Cost, ChargesUnevenChunksAsTheyAreCut) {
  const Cost uneven = cost_of("ring", 3, 4, 4);  // one element: only chunk 0 has bytes
  EXPECT_EQ(uneven.bytes_sent[0] + uneven.bytes_sent[1] + uneven.bytes_sent[2], 4 * 4);
  EXPECT_NEAR(uneven.time_s, 4 * (1e-3 + 4 / 1e3) + 2 * 4 / 1e4, 1e-12);
}

TEST(Cost, LaysChannelsOverEachOther) {
  // Every rank takes every place in one of the n trees, so all ports carry 2(n-1)/n buffers.
  const Cost trees = cost_of("multi_binary_tree_star", 7, 7000);
  EXPECT_THAT(trees.bytes_sent, ::testing::Each(12000));
  EXPECT_EQ(trees.rounds, 4);
  // Up: each rank is a leaf's parent in 2 trees (4 chunks in), then a root in one (2 chunks
  // in).
  EXPECT_NEAR(trees.time_s, 4 * 1e-3 + 2 * (4000 + 2000) / 1e3 + (4000 + 2000) / 1e4, 1e-12);
}

TEST(Cost, RefusesNumbersOutsideTheirRange) {
  const Schedule ring = build_schedule("ring", Collective::all_reduce, 2);
  EXPECT_THROW(cost(ring, -1, kNetwork), Error);
  EXPECT_THROW(cost(ring, 6, kNetwork, 4), Error);
  EXPECT_THROW(cost(ring, 8, kNetwork, 0), Error);
  EXPECT_THROW(cost(ring, 8, {-1e-3, 1e3}), Error);
  EXPECT_THROW(cost(ring, 8, {1e-3, 0}), Error);
  EXPECT_THROW(cost(ring, 8, {1e-3, 1e3, 0}), Error);
  EXPECT_THROW(cost(ring, std::int64_t{1} << 49, kNetwork), Error);
}

TEST(Cost, RefusesSchedulesThatPointOutsideTheirWorld) {
  const auto price = [](int n, int chunks, const Transfer& transfer) {
    const Schedule one{"mine", Collective::all_reduce, n, 0, chunks, {Channel{{{transfer}}}}};
    return cost(one, 8, kNetwork);
  };
  EXPECT_NO_THROW(price(2, 2, {0, 1, 0, 2, Combine::reduce}));
  EXPECT_THROW(price(2, 2, {0, 2, 0, 1, Combine::reduce}), Error);
  EXPECT_THROW(price(2, 2, {-1, 1, 0, 1, Combine::reduce}), Error);
  EXPECT_THROW(price(2, 2, {0, 1, 1, 2, Combine::reduce}), Error);
  EXPECT_THROW(price(-1, 2, {0, 1, 0, 1, Combine::reduce}), Error);
  EXPECT_THROW(price(2, 0, {0, 1, 0, 1, Combine::reduce}), Error);
  EXPECT_THROW(price(2, 2'000'000'000, {0, 1, 0, 1, Combine::reduce}), Error);
}

TEST(ChooseSchedule, AgreesWithTheCostsItCompares) {
  for (const int n : {2, 3, 8, 12, 33}) {
    for (const std::int64_t bytes :
         {std::int64_t{8}, std::int64_t{100'000}, std::int64_t{100'000'000}}) {
      const Network network{5e-5, 1.25e9, 5e9};
      const std::string chosen = choose_schedule(Collective::all_reduce, bytes, n, network);
      const double chosen_s =
          cost(build_schedule(chosen, Collective::all_reduce, n), bytes, network).time_s;
      for (const char* other :
           {"ring", "recursive_doubling", "halving_doubling", "double_binary_tree"}) {
        const double other_s =
            cost(build_schedule(other, Collective::all_reduce, n), bytes, network).time_s;
        EXPECT_LE(chosen_s, other_s * (1 + 1e-12))
            << other << " beats " << chosen << " at " << n;
      }
    }
  }
}

// Two hosts of two ranks. Inside: 1 us, 4e9 B/s; between: 10 us, 1e9 B/s and shared by the
// host.
constexpr Hosts kHosts{{1e-5, 1e9}, {1e-6, 4e9}, 2};

TEST(TimeOnHosts, IsTheClosedForm) {
  const double s = 4e6;
  const auto time_s = [](const char* spec) {
    return time_on_hosts(build_schedule(spec, Collective::all_reduce, 4), 4'000'000, kHosts);
  };
  // every round has a link between hosts, each with a quarter of the buffer
  EXPECT_NEAR(time_s("ring"), 6 * (1e-5 + s / 4 / 1e9), 1e-12);
  // half of the buffer inside, then both ranks' quarters over one port, twice, then inside
  EXPECT_NEAR(time_s("hierarchical(ranks_per_host=2)"),
              2 * (1e-6 + s / 2 / 4e9) + 2 * (1e-5 + s / 2 / 1e9), 1e-12);
  // both ranks of a host send the whole buffer over its port
  EXPECT_NEAR(time_s("recursive_doubling"), 1e-6 + s / 4e9 + 1e-5 + 2 * s / 1e9, 1e-12);
}

TEST(ChooseSchedule, GoesThroughHostsWhereTheyHaveSeveralRanks) {
  const auto choice = [](int n, std::int64_t bytes, int per_host) {
    const Hosts hosts{kHosts.between, kHosts.inside, per_host};
    return choose_schedule(Collective::all_reduce, bytes, n, hosts);
  };
  EXPECT_TRUE(choice(4, 1 << 24, 2).starts_with("hierarchical("));
  EXPECT_TRUE(choice(16, 1 << 24, 4).starts_with("hierarchical("));
  EXPECT_FALSE(choice(4, 1 << 24, 1).starts_with("hierarchical("));
  EXPECT_FALSE(choice(4, 1 << 24, 4).starts_with("hierarchical("));  // one host
  EXPECT_FALSE(choice(5, 1 << 24, 2).starts_with("hierarchical("));  // unequal hosts
  EXPECT_NO_THROW(choice(512, 1 << 20, 8));
}

}  // namespace
}  // namespace kf
