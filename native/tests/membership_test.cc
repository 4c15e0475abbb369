#include "kf/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "kf/error.h"

namespace kf {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Member worker(const std::string& id) {
  Member member;
  member.id = id;
  member.host = "host-of-" + id;
  return member;
}

Roster job(const std::vector<std::string>& ids, std::int64_t least, std::int64_t most) {
  Roster roster = make_roster(static_cast<std::int64_t>(ids.size()), least, most);
  for (std::size_t rank = ids.size(); rank-- > 0;) {
    EXPECT_TRUE(arrive(roster, static_cast<std::int64_t>(rank), worker(ids[rank])));
  }
  return roster;
}

std::vector<std::string> ids(const std::vector<Member>& members) {
  std::vector<std::string> out;
  for (const Member& member : members) out.push_back(member.id);
  return out;
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Roster, TheFirstViewBeginsWhenAllFoundersHaveComeInOrderOfRank) {
  Roster roster = make_roster(2, 1, 4);
  EXPECT_TRUE(arrive(roster, 1, worker("b")));
  EXPECT_EQ(roster.version, 0);
  EXPECT_TRUE(arrive(roster, 1, worker("c")));  // b died and was started again
  EXPECT_TRUE(arrive(roster, 0, worker("a")));
  EXPECT_EQ(roster.version, 1);
  EXPECT_THAT(ids(roster.members), ElementsAre("a", "c"));
  EXPECT_TRUE(roster.members[0].settled);
  EXPECT_FALSE(arrive(roster, 0, worker("d"))) << "the job has begun";
  EXPECT_THAT(refusal([&] { arrive(roster, 2, worker("e")); }), HasSubstr("[0, 2), got 2"));
  EXPECT_THAT(refusal([] { make_roster(2, 3, 4); }), HasSubstr("min 3, workers 2, max 4"));
}

TEST(Roster, SurvivorsKeepTheirOrderAndRankZeroMovesOnlyIfItDied) {  // D1
  Roster roster = job({"A", "B", "C", "D"}, 1, 4);
  const auto lose = [&](const std::string& dead) {
    const std::int64_t version = roster.version;
    for (const std::string& id : ids(roster.members)) {
      if (id == dead) continue;
      EXPECT_TRUE(call_roll(roster, version, id, "a connection broke"));
    }
    EXPECT_TRUE(conclude(roster, version, {dead}, dead + " died"));
    EXPECT_EQ(roster.version, version + 1);
  };
  lose("D");
  lose("B");
  EXPECT_THAT(ids(roster.members), ElementsAre("A", "C"));
  EXPECT_TRUE(join(roster, worker("E")));
  EXPECT_TRUE(change_wanted(roster));
  EXPECT_TRUE(install(roster, 3));
  EXPECT_THAT(ids(roster.members), ElementsAre("A", "C", "E"));
  EXPECT_EQ(roster.reason, "E joins");
  EXPECT_FALSE(roster.members[2].settled);
  ASSERT_NE(roster.departed("B"), nullptr);
  EXPECT_EQ(roster.departed("B")->how, Departure::lost);
  EXPECT_EQ(roster.departed("B")->host, "host-of-B");
  EXPECT_EQ(roster.departed("B")->version, 3);
}

TEST(Roster, ARollCallEndsOnlyWhenEverybodyIsAccountedFor) {
  Roster roster = job({"a", "b", "c"}, 1, 3);
  EXPECT_FALSE(conclude(roster, 1, {"c"}, "c died")) << "no roll is called";
  EXPECT_TRUE(call_roll(roster, 1, "a", "c hung up"));
  EXPECT_FALSE(call_roll(roster, 1, "a", "again"));
  EXPECT_EQ(roster.call_reason, "c hung up");
  EXPECT_FALSE(conclude(roster, 1, {"c"}, "c died")) << "b may live";
  EXPECT_FALSE(install(roster, 1)) << "a failure comes first";
  EXPECT_TRUE(call_roll(roster, 1, "b", ""));
  EXPECT_FALSE(call_roll(roster, 1, "stranger", ""));
  EXPECT_TRUE(conclude(roster, 1, {"c"}, "c died"));
  EXPECT_FALSE(conclude(roster, 1, {"a"}, "somebody else was first"));
  EXPECT_THAT(ids(roster.members), ElementsAre("a", "b"));
  EXPECT_FALSE(roster.calling());
  EXPECT_FALSE(call_roll(roster, 1, "c", "I was stopped")) << "of a view that is over";
}

TEST(Roster, AllMayGoOnTogetherWhenOnlyAConnectionBroke) {
  Roster roster = job({"a", "b"}, 1, 2);
  EXPECT_TRUE(call_roll(roster, 1, "a", "reset"));
  EXPECT_TRUE(call_roll(roster, 1, "b", "reset"));
  EXPECT_TRUE(conclude(roster, 1, {}, "reset"));
  EXPECT_EQ(roster.version, 2);
  EXPECT_THAT(ids(roster.members), ElementsAre("a", "b"));
}

TEST(Roster, ANewMemberWithoutTheStateBecomesAJoinerAgainWhenItsViewFails) {
  Roster roster = job({"a", "b"}, 1, 4);
  EXPECT_TRUE(join(roster, worker("j")));
  EXPECT_TRUE(join(roster, worker("k")));
  EXPECT_FALSE(join(roster, worker("k")));
  EXPECT_TRUE(install(roster, 1));
  EXPECT_TRUE(settle(roster, "k"));
  for (const char* id : {"b", "j", "k"}) {
    EXPECT_TRUE(call_roll(roster, 2, id, "a hung up"));
  }
  EXPECT_TRUE(conclude(roster, 2, {"a"}, "a died"));
  EXPECT_THAT(ids(roster.members), ElementsAre("b", "k"));
  EXPECT_THAT(ids(roster.joiners), ElementsAre("j"));
  EXPECT_TRUE(install(roster, 3));
  EXPECT_THAT(ids(roster.members), ElementsAre("b", "k", "j"));
  EXPECT_THAT(roster.joiners, IsEmpty());
}

TEST(Roster, ImpossibleSizesAreRefusedAtOnceWithTheRule) {  // C13
  Roster roster = job({"a", "b"}, 2, 4);
  EXPECT_THAT(refusal([&] { resize(roster, 1, "cheaper"); }),
              HasSubstr("world_size must be in [2, 4], the job's limits, got 1 (cheaper)"));
  EXPECT_THAT(refusal([&] { resize(roster, 5, ""); }), HasSubstr("got 5"));
  EXPECT_THAT(refusal([&] { leave(roster, "a"); }),
              HasSubstr("1 workers would be left, and the job needs at least 2"));
  EXPECT_THAT(refusal([&] { exclude(roster, "z", "slow"); }),
              HasSubstr("no member is named 'z'"));
  EXPECT_FALSE(change_wanted(roster));
  EXPECT_FALSE(install(roster, 7)) << "of another view";
}

TEST(Roster, TwoReadyJoinersAreOneChange) {  // C13
  Roster roster = job({"a", "b"}, 2, 4);
  EXPECT_TRUE(resize(roster, 4, ""));
  EXPECT_FALSE(change_wanted(roster)) << "nobody is ready";
  join(roster, worker("c"));
  join(roster, worker("d"));
  join(roster, worker("e"));
  EXPECT_TRUE(install(roster, 1));
  EXPECT_THAT(ids(roster.members), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(ids(roster.joiners), ElementsAre("e"));
  EXPECT_FALSE(change_wanted(roster));
}

TEST(Roster, WhoLeavesIsToldHowAndTheLastRanksGoWhenTheJobShrinks) {
  Roster roster = job({"a", "b", "c", "d", "e"}, 1, 5);
  EXPECT_TRUE(leave(roster, "b"));
  EXPECT_TRUE(exclude(roster, "c", "it is slow"));
  EXPECT_TRUE(resize(roster, 2, ""));
  EXPECT_TRUE(install(roster, 1));
  EXPECT_THAT(ids(roster.members), ElementsAre("a", "d"));
  EXPECT_EQ(roster.departed("b")->how, Departure::left);
  EXPECT_EQ(roster.departed("c")->how, Departure::excluded);
  EXPECT_EQ(roster.departed("c")->reason, "it is slow");
  EXPECT_EQ(roster.departed("e")->how, Departure::resized);
  EXPECT_THAT(roster.leaving, IsEmpty());
}

TEST(Roster, TheLastOneWithTheStateHandsItOverBeforeItLeaves) {
  Roster roster = job({"a"}, 1, 1);
  EXPECT_THAT(refusal([&] { leave(roster, "a"); }), HasSubstr("0 workers would be left"));
  EXPECT_TRUE(join(roster, worker("j")));
  EXPECT_FALSE(change_wanted(roster)) << "the job is full";
  EXPECT_TRUE(leave(roster, "a"));
  EXPECT_TRUE(install(roster, 1));
  EXPECT_THAT(ids(roster.members), ElementsAre("a", "j"));
  EXPECT_FALSE(change_wanted(roster)) << "j does not have it yet";
  EXPECT_TRUE(settle(roster, "j"));
  EXPECT_TRUE(install(roster, 2));
  EXPECT_THAT(ids(roster.members), ElementsAre("j"));
}

TEST(Roster, TheJobIsOverWhenTooFewAreLeft) {
  Roster roster = job({"a", "b", "c"}, 2, 3);
  EXPECT_TRUE(call_roll(roster, 1, "c", "all hung up"));
  EXPECT_TRUE(conclude(roster, 1, {"a", "b"}, "a and b died"));
  EXPECT_THAT(roster.ended, HasSubstr("1 workers are left and the job needs 2 (a and b died)"));
  EXPECT_EQ(roster.version, 1);
  EXPECT_THAT(refusal([&] { join(roster, worker("d")); }), HasSubstr("the job is over"));
  EXPECT_FALSE(end(roster, "again"));
}

TEST(Reconcile, TellsWhoHasTheLastStepWhoNeedsItAndWhoNeedsTheState) {
  const Reconciled standing = reconcile({6, 7, -1, 7});
  EXPECT_EQ(standing.committed, 7);
  EXPECT_THAT(standing.sources, ElementsAre(1, 3));
  EXPECT_THAT(standing.laggards, ElementsAre(0));
  EXPECT_THAT(standing.newcomers, ElementsAre(2));
  EXPECT_THROW(reconcile({5, 7}), Error);
  EXPECT_THROW(reconcile({-1, -1}), Error);
  EXPECT_THAT(reconcile({0, -1}).newcomers, ElementsAre(1));
}

}  // namespace
}  // namespace kf
