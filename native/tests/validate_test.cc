#include "kf/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kf/error.h"
#include "kf/generators.h"

namespace kf {
namespace {

using ::testing::HasSubstr;

std::string fault(const Schedule& schedule) {
  try {
    validate(schedule);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    return error.what();
  }
  return "";
}

Schedule one_channel(Collective collective, int n, int chunks, std::vector<Round> rounds) {
  return {"mine", collective, n, 0, chunks, {Channel{std::move(rounds)}}};
}

constexpr auto kAdd = Combine::reduce;
constexpr auto kSet = Combine::replace;

TEST(Validate, AcceptsASwapOfContributionsInOneRound) {
  EXPECT_EQ(fault(one_channel(Collective::all_reduce, 2, 1,
                              {{{0, 1, 0, 1, kAdd}, {1, 0, 0, 1, kAdd}}})),
            "");
}

TEST(Validate, NamesTheContributionThatWouldCountTwice) {
  const auto twice =
      one_channel(Collective::all_reduce, 2, 1, {{{0, 1, 0, 1, kAdd}}, {{0, 1, 0, 1, kAdd}}});
  EXPECT_THAT(fault(twice),
              HasSubstr("channel 0, round 1, rank 0 to rank 1: adds the contribution "
                        "of rank 0 to chunk 0, which has it already"));
}

TEST(Validate, NamesTheContributionThatIsMissing) {
  const auto lacking = one_channel(
      Collective::all_reduce, 3, 2,
      {{{0, 2, 0, 2, kAdd}, {1, 2, 0, 1, kAdd}}, {{2, 0, 0, 2, kSet}, {2, 1, 0, 2, kSet}}});
  EXPECT_THAT(fault(lacking), HasSubstr("chunk 1 of rank 0 lacks the contribution of rank 1"));
}

TEST(Validate, FindsTheLostContributionBehindAReplaceInPlaceOfAReduce) {
  const auto lost =
      one_channel(Collective::all_reduce, 2, 1, {{{0, 1, 0, 1, kSet}}, {{1, 0, 0, 1, kSet}}});
  EXPECT_THAT(fault(lost), HasSubstr("lacks the contribution of rank 1"));
}

TEST(Validate, RefusesToSendWhatIsNotThereYet) {
  const auto early =
      one_channel(Collective::broadcast, 3, 1, {{{0, 1, 0, 1, kSet}, {1, 2, 0, 1, kSet}}});
  EXPECT_THAT(fault(early),
              HasSubstr("round 0, rank 1 to rank 2: rank 1 has nothing in chunk 0 yet"));
}

TEST(Validate, RefusesToAddToAnEmptyChunk) {
  const auto add = one_channel(Collective::broadcast, 2, 1, {{{0, 1, 0, 1, kAdd}}});
  EXPECT_THAT(fault(add), HasSubstr("the receiver has nothing yet"));
}

TEST(Validate, RefusesTwoWritesOfOneChunkInARoundUnlessBothReduce) {
  const auto both =
      one_channel(Collective::all_reduce, 3, 1, {{{0, 2, 0, 1, kAdd}, {1, 2, 0, 1, kSet}}});
  EXPECT_THAT(fault(both), HasSubstr("chunk 0 of rank 2 is written twice in this round"));
}

TEST(Validate, RefusesAChunkInTwoChannels) {
  Schedule shared = one_channel(Collective::broadcast, 3, 1, {{{0, 1, 0, 1, kSet}}});
  shared.channels.push_back(Channel{{{{0, 2, 0, 1, kSet}}}});
  EXPECT_THAT(fault(shared), HasSubstr("chunk 0 is used by channel 0 too"));
}

TEST(Validate, ChecksEveryRange) {
  const auto with = [](Transfer transfer) {
    return fault(one_channel(Collective::all_reduce, 2, 2, {{transfer}}));
  };
  EXPECT_THAT(with({0, 2, 0, 1, kAdd}), HasSubstr("ranks must be in [0, 2)"));
  EXPECT_THAT(with({-1, 1, 0, 1, kAdd}), HasSubstr("ranks must be in [0, 2)"));
  EXPECT_THAT(with({1, 1, 0, 1, kAdd}), HasSubstr("cannot send to itself"));
  EXPECT_THAT(with({0, 1, 1, 2, kAdd}), HasSubstr("got 2 from 1"));
  EXPECT_THAT(with({0, 1, -1, 1, kAdd}), HasSubstr("got 1 from -1"));
  EXPECT_THAT(with({0, 1, 0, 0, kAdd}), HasSubstr("got 0 from 0"));
  EXPECT_THAT(with({0, 1, 2147483647, 2147483647, kAdd}), HasSubstr("run inside [0, 2)"));
  Schedule header = one_channel(Collective::all_gather, 2, 3, {});
  EXPECT_THAT(fault(header), HasSubstr("multiple of world_size"));
  header.collective = Collective::all_to_all;
  EXPECT_THAT(fault(header), HasSubstr("chunk_count must be 4"));
  header.chunk_count = 0;
  EXPECT_THAT(fault(header), HasSubstr("chunk_count must be >= 1"));
  header.root = 2;
  EXPECT_THAT(fault(header), HasSubstr("root must be in [0, 2), got 2"));
  header.world_size = 0;
  EXPECT_THAT(fault(header), HasSubstr("world_size must be in [1, 8192], got 0"));
}

TEST(Validate, ProvesLargeWorldsInBlocksOfChunks) {
  // 130 ranks need three words a set; 65,536 chunks of 256 ranks exceed one block of memory.
  for (const char* spec :
       {"ring", "multi_binary_tree_star", "double_binary_tree", "halving_doubling"}) {
    EXPECT_EQ(fault(build_schedule(spec, Collective::all_reduce, 130)), "") << spec;
  }
  Schedule broken = build_schedule("clique", Collective::all_to_all, 256);
  EXPECT_EQ(fault(broken), "");
  broken.channels[0].rounds[0].pop_back();
  EXPECT_THAT(fault(broken), HasSubstr("chunk 65534 of rank 254 lacks the data"));
}

TEST(Validate, LetsABarrierHearOfARankTwice) {
  EXPECT_EQ(fault(build_schedule("dissemination", Collective::barrier, 5)), "");
  Schedule deaf = build_schedule("dissemination", Collective::barrier, 5);
  deaf.channels[0].rounds.pop_back();
  EXPECT_THAT(fault(deaf), HasSubstr("lacks the contribution of rank"));
}

}  // namespace
}  // namespace kf
