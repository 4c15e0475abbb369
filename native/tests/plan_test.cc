// What a rank's plan says about memory: which sends may be lent, which results go back at once.
#include "executor/plan.h"

#include <gtest/gtest.h>

#include <string>

#include "kf/generators.h"

namespace kf {

namespace {

std::shared_ptr<const Plan> plan_of(const std::string& spec, int world_size, int rank) {
  return make_plan(build_schedule(spec, Collective::all_reduce, world_size, 0), rank);
}

int swaps_in(const Plan& plan) {
  int count = 0;
  for (const LocalTransfer& t : plan.transfers) count += t.swaps ? 1 : 0;
  return count;
}

// The reducing receives whose result goes back to where the contribution came from.
int returns_in(const Plan& plan) {
  int count = 0;
  for (const LocalTransfer& t : plan.transfers) {
    if (t.returned_by < 0) continue;
    ++count;
    const LocalTransfer& back = plan.transfers[static_cast<std::size_t>(t.returned_by)];
    EXPECT_FALSE(t.is_send);
    EXPECT_EQ(t.combine, Combine::reduce);
    EXPECT_TRUE(back.is_send);
    EXPECT_EQ(back.combine, Combine::replace);
    EXPECT_EQ(back.peer, t.peer);
    EXPECT_EQ(back.chunk_begin, t.chunk_begin);
    EXPECT_EQ(back.chunk_count, t.chunk_count);
  }
  return count;
}

}  // namespace

TEST(Plan, RanksThatExchangeChunksMustCopyThem) {
  EXPECT_EQ(swaps_in(*plan_of("recursive_doubling", 2, 0)), 1);
  EXPECT_EQ(swaps_in(*plan_of("recursive_doubling", 4, 3)), 2);
  for (const char* spec : {"ring", "halving_doubling", "binary_tree", "star"}) {
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(swaps_in(*plan_of(spec, 4, rank)), 0) << spec << " on rank " << rank;
    }
  }
}

TEST(Plan, ARingOfTwoReturnsResultsAtOnceAndALongerOneNever) {
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(returns_in(*plan_of("ring", 2, rank)), 1);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(returns_in(*plan_of("ring", 4, rank)), 0);
}

// Only what is final may go back: at the root of a star that is the last contribution.
TEST(Plan, OnlyTheLastContributionIsFinal) {
  const auto root = plan_of("star", 4, 0);
  EXPECT_EQ(returns_in(*root), 1);
  int last = -1;
  for (const LocalTransfer& t : root->transfers) {
    if (!t.is_send && t.combine == Combine::reduce) last = t.returned_by;
  }
  EXPECT_GE(last, 0);
  EXPECT_EQ(returns_in(*plan_of("star", 4, 2)), 0);
}

// Ranks that add up for each other change a chunk while the peer does: it must stay as it is.
TEST(Plan, ExchangedChunksAreNeverReturned) {
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(returns_in(*plan_of("recursive_doubling", 4, rank)), 0);
    EXPECT_EQ(returns_in(*plan_of("clique", 4, rank)), 1);  // each owns a chunk
  }
}

// A peer that lends its chunk to two ranks must not have it written by one of them.
TEST(Plan, NothingGoesBackToAPeerThatLendsToOthersToo) {
  Schedule schedule;
  schedule.name = "test";
  schedule.world_size = 3;
  schedule.chunk_count = 1;
  const Transfer to_root{2, 0, 0, 1, Combine::reduce};
  const Transfer aside{2, 1, 0, 1, Combine::replace};
  const Transfer back{0, 2, 0, 1, Combine::replace};
  schedule.channels = {{{{to_root}, {back}}}};
  EXPECT_EQ(returns_in(*make_plan(schedule, 0)), 1);
  schedule.channels = {{{{to_root, aside}, {back}}}};
  EXPECT_EQ(returns_in(*make_plan(schedule, 0)), 0);
  schedule.channels = {{{{aside}, {to_root}, {back}}}};
  EXPECT_EQ(returns_in(*make_plan(schedule, 0)), 0);
}

TEST(Plan, GroupsCountPeersAsTheViewDoes) {
  const auto plan = make_plan(build_schedule("ring", Collective::all_reduce, 2, 0), 1, {5, 3});
  EXPECT_EQ(returns_in(*plan), 1);
  for (const LocalTransfer& t : plan->transfers) EXPECT_EQ(t.peer, 5);
}

}  // namespace kf
