#include "kf/generators.h"

#include <gtest/gtest.h>

#include "kf/error.h"

namespace kf {
namespace {

TEST(Ring, AllReduceUsesTwoTimesNMinusOneRoundsOfOneChunk) {
  const Schedule ring = build_schedule("ring", Collective::all_reduce, 4);
  ASSERT_EQ(ring.channels.size(), 1u);
  EXPECT_EQ(ring.chunk_count, 4);
  ASSERT_EQ(ring.channels[0].rounds.size(), 6u);
  for (const Round& round : ring.channels[0].rounds) {
    ASSERT_EQ(round.size(), 4u);
    for (const Transfer& transfer : round) EXPECT_EQ(transfer.dst, (transfer.src + 1) % 4);
  }
}

TEST(Star, PutsTheNamedRootInTheMiddle) {
  const Schedule star = build_schedule("star(root=1)", Collective::all_reduce, 3);
  EXPECT_EQ(star.name, "star(root=1)");
  ASSERT_EQ(star.channels[0].rounds.size(), 2u);
  for (const Transfer& transfer : star.channels[0].rounds[0]) EXPECT_EQ(transfer.dst, 1);
}

TEST(DoubleBinaryTree, MakesTheLeavesOfOneTreeInnerRanksOfTheOther) {
  for (const int n : {4, 7, 8, 13, 32, 33}) {
    const Schedule schedule = build_schedule("double_binary_tree", Collective::broadcast, n);
    ASSERT_EQ(schedule.channels.size(), 2u);
    const Schedule all = build_schedule("double_binary_tree", Collective::all_reduce, n);
    std::vector<std::vector<bool>> inner(2,
                                         std::vector<bool>(static_cast<std::size_t>(n), false));
    for (std::size_t t = 0; t < 2; ++t) {
      for (const Round& round : all.channels[t].rounds) {
        for (const Transfer& transfer : round) {
          if (transfer.combine == Combine::reduce)
            inner[t][static_cast<std::size_t>(transfer.dst)] = true;
        }
      }
    }
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(n); ++rank) {
      EXPECT_TRUE(inner[0][rank] || inner[1][rank]) << "rank " << rank << " of " << n;
    }
  }
}

TEST(BuildSchedule, WritesTheCanonicalSpecAsItsName) {
  const auto name = [](const char* spec) {
    return build_schedule(spec, Collective::all_reduce, 4).name;
  };
  EXPECT_EQ(name(" ring "), "ring");
  EXPECT_EQ(name("star( root = 0 )"), "star");
  EXPECT_EQ(name("tree(fanout=3)"), "tree(fanout=3)");
  EXPECT_EQ(name("from_parents((0,0, 0,1))"), "from_parents(0,0,0,1)");
  EXPECT_EQ(name("forest(2*(0,0,0,1),(1,1,0,1))"), "forest(2*(0,0,0,1),(1,1,0,1))");
  EXPECT_EQ(name("ring(order=(0,2,1,3))"), "ring(order=(0,2,1,3))");
}

TEST(BuildSchedule, RefusesWhatItCannotBuildAndSaysWhy) {
  const auto message = [](const char* spec, Collective collective, int n, int root) {
    try {
      build_schedule(spec, collective, n, root);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  using enum Collective;
  EXPECT_NE(message("rign", all_reduce, 2, 0).find("no schedule is called \"rign\""),
            std::string::npos);
  EXPECT_NE(message("ring", all_reduce, 0, 0).find("world_size must be in [1, 8192], got 0"),
            std::string::npos);
  EXPECT_NE(message("ring", broadcast, 2, 2).find("root must be in [0, 2), got 2"),
            std::string::npos);
  EXPECT_NE(message("ring", all_to_all, 2, 0).find("offered by auto, clique, custom, pairwise"),
            std::string::npos);
  EXPECT_NE(message("ring(x=1)", all_reduce, 2, 0).find("no argument \"x\""),
            std::string::npos);
  EXPECT_NE(message("ring(order=(0,0))", all_reduce, 2, 0).find("each rank"),
            std::string::npos);
  EXPECT_NE(message("star(root=5)", all_reduce, 2, 0).find("got 5"), std::string::npos);
  EXPECT_NE(message("tree(fanout=two)", all_reduce, 2, 0).find("whole number"),
            std::string::npos);
  EXPECT_NE(message("tree(fanout=2", all_reduce, 2, 0).find("must end with"),
            std::string::npos);
  EXPECT_NE(message("from_parents(1,0)", all_reduce, 2, 0).find("needs a root"),
            std::string::npos);
  EXPECT_NE(message("from_parents(0,1)", all_reduce, 2, 0).find("rank 0 and rank 1 are both"),
            std::string::npos);
  EXPECT_NE(message("from_parents(0,2,1)", all_reduce, 3, 0).find("rank 1 is on a cycle"),
            std::string::npos);
  EXPECT_NE(message("from_parents(0,3)", all_reduce, 2, 0).find("rank 1's parent"),
            std::string::npos);
  EXPECT_NE(message("from_parents(0)", all_reduce, 2, 0).find("each of the 2 ranks"),
            std::string::npos);
}

TEST(BuildSchedule, NeedsNoTransferForOneRank) {
  for (const std::string& name : generator_names()) {
    for (const Collective collective : collectives_of(name)) {
      const std::string spec = name == "from_parents" ? "from_parents(0)"
                               : name == "forest"     ? "forest((0))"
                                                      : name;
      const Schedule schedule = build_schedule(spec, collective, 1);
      EXPECT_TRUE(schedule.channels.empty()) << spec;
      EXPECT_EQ(schedule.chunk_count, 1) << spec;
    }
  }
}

}  // namespace
}  // namespace kf
