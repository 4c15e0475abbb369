#include "kf/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "kf/error.h"

namespace kf {
namespace {

using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<Setting> first_settings() {
  return {{"local_batch", SettingKind::hyper, 32.0, 1, 1 << 20, true},
          {"learning_rate", SettingKind::hyper, 0.1, 0, kInfinity, false},
          {"schedule", SettingKind::schedule, std::string("ring")},
          {"world_size", SettingKind::world_size, 4.0, 1, 1 << 16, true}};
}

std::array<double, 2> reduce(const std::vector<Engine>& engines) {
  std::array<double, 2> reduced{-kInfinity, -kInfinity};
  for (const Engine& engine : engines) {
    const auto words = engine.digest_words();
    for (std::size_t i = 0; i < 2; ++i) reduced[i] = std::max(reduced[i], words[i]);
  }
  return reduced;
}

std::string message_of(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace

TEST(Engine, ChangesNothingWhenNobodyProposes) {
  std::vector<Engine> engines(3, Engine(first_settings(), 1));
  const auto reduced = reduce(engines);
  for (Engine& engine : engines) {
    EXPECT_EQ(engine.decide(reduced).verdict, Verdict::unchanged);
    EXPECT_EQ(engine.config_version(), 0);
    EXPECT_EQ(engine.step(), 1);
  }
}

TEST(Engine, InstallsWhatAllRanksProposeAndLogsOldAndNew) {
  std::vector<Engine> engines(3, Engine(first_settings(), 7));
  for (Engine& engine : engines) engine.propose({{"local_batch", 64.0, "noise", "Grow"}});
  const auto reduced = reduce(engines);
  for (Engine& engine : engines) {
    const Decision decision = engine.decide(reduced);
    ASSERT_EQ(decision.verdict, Verdict::installed);
    ASSERT_EQ(decision.installed.size(), 1u);
    const Installed& entry = decision.installed[0];
    EXPECT_EQ(entry.step, 1);
    EXPECT_EQ(entry.view_version, 7);
    EXPECT_EQ(entry.config_version, 1);
    EXPECT_EQ(entry.old_value, Value(32.0));
    EXPECT_EQ(entry.new_value, Value(64.0));
    EXPECT_EQ(entry.reason, "noise");
    EXPECT_EQ(entry.policy, "Grow");
    EXPECT_EQ(engine.number("local_batch"), 64);
    EXPECT_FALSE(engine.has_proposal());
  }
}

TEST(Engine, ReasonsMayDifferBetweenRanks) {
  std::vector<Engine> engines(2, Engine(first_settings(), 1));
  engines[0].propose({{"local_batch", 64.0, "12.1", "Grow"}});
  engines[1].propose({{"local_batch", 64.0, "12.2", "Grow"}});
  const auto reduced = reduce(engines);
  EXPECT_EQ(engines[0].decide(reduced).verdict, Verdict::installed);
}

TEST(Engine, AProposalOfOneRankNeverInstallsAndTheErrorSaysWhoSaidWhat) {
  std::vector<Engine> engines(3, Engine(first_settings(), 1));
  engines[1].propose({{"local_batch", 64.0, "", "Grow"}});
  const auto reduced = reduce(engines);
  std::vector<std::string> texts;
  for (Engine& engine : engines) {
    EXPECT_EQ(engine.decide(reduced).verdict, Verdict::conflict);
    EXPECT_EQ(engine.number("local_batch"), 32);
    texts.push_back(engine.proposal_text());
  }
  for (Engine& engine : engines) {
    const auto text = message_of([&] { engine.raise_conflict(texts); }, ErrorCode::conflict);
    EXPECT_THAT(text, HasSubstr("ranks 0 and 2: step 1, view 1, configuration 0"));
    EXPECT_THAT(text, HasSubstr("no change"));
    EXPECT_THAT(text, HasSubstr("rank 1: step 1"));
    EXPECT_THAT(text, HasSubstr("local_batch = 64 (policy Grow)"));
  }
  const auto after = reduce(engines);  // the conflict left no trace
  for (Engine& engine : engines) EXPECT_EQ(engine.decide(after).verdict, Verdict::unchanged);
}

TEST(Engine, RanksAtDifferentStepsOrConfigurationsDisagree) {
  std::vector<Engine> engines(2, Engine(first_settings(), 1));
  engines[1].decide(engines[1].digest_words());
  EXPECT_EQ(engines[0].decide(reduce(engines)).verdict, Verdict::conflict);

  auto other = first_settings();
  other[1].value = 0.2;
  std::vector<Engine> drifted{Engine(first_settings(), 1), Engine(other, 1)};
  EXPECT_EQ(drifted[0].decide(reduce(drifted)).verdict, Verdict::conflict);
}

TEST(Engine, AnInstallShowsInEveryLaterDigest) {
  std::vector<Engine> engines(2, Engine(first_settings(), 1));
  engines[1].propose({{"local_batch", 64.0, "", ""}});
  for (Engine& engine : engines) engine.decide(engine.digest_words());  // as if each were alone
  EXPECT_EQ(engines[0].step(), engines[1].step());
  EXPECT_EQ(engines[0].decide(reduce(engines)).verdict, Verdict::conflict);
}

TEST(Engine, BothZerosAreOneValue) {
  std::vector<Engine> engines(2, Engine(first_settings(), 1));
  engines[0].propose({{"learning_rate", 0.0, "", ""}});
  engines[1].propose({{"learning_rate", -0.0, "", ""}});
  EXPECT_EQ(engines[0].decide(reduce(engines)).verdict, Verdict::installed);
}

TEST(Engine, AValueAlreadyInForceIsNoChange) {
  Engine engine(first_settings(), 1);
  const auto before = engine.digest_words();
  engine.propose({{"local_batch", 32.0, "", "Fixed"}});
  EXPECT_EQ(engine.digest_words(), before);
  EXPECT_EQ(engine.decide(before).verdict, Verdict::unchanged);
}

TEST(Engine, TwoPoliciesThatWantDifferentValuesAreNamed) {
  Engine engine(first_settings(), 1);
  engine.propose({{"local_batch", 64.0, "", "Grow"}});
  const auto text = message_of([&] { engine.propose({{"local_batch", 16.0, "", "Shrink"}}); },
                               ErrorCode::conflict);
  EXPECT_THAT(text, HasSubstr("policy Grow wants local_batch = 64"));
  EXPECT_THAT(text, HasSubstr("policy Shrink wants 16"));
  EXPECT_FALSE(engine.has_proposal());
}

TEST(Engine, RefusesWhatCannotBeInstalled) {
  Engine engine(first_settings(), 1);
  const auto refused = [&](const std::string& name, const Value& value) {
    return message_of([&] { engine.propose({{name, value, "", "P"}}); }, ErrorCode::usage);
  };
  EXPECT_THAT(
      refused("local_batch", 0.5),
      HasSubstr("local_batch must be an integer in [1, 1048576], got 0.5 from policy P"));
  EXPECT_THAT(refused("local_batch", 0.0), HasSubstr("got 0 from"));
  EXPECT_THAT(refused("local_batch", 2.5), HasSubstr("got 2.5 from"));
  EXPECT_THAT(refused("learning_rate", std::numeric_limits<double>::quiet_NaN()),
              HasSubstr("nan"));
  EXPECT_THAT(refused("learning_rate", -1.0), HasSubstr("must be in [0, inf], got -1"));
  EXPECT_THAT(refused("schedule", 3.0), HasSubstr("must be a text"));
  EXPECT_THAT(refused("local_batch", std::string("x")), HasSubstr("must be a number"));
  EXPECT_THAT(refused("momentum", 0.9), HasSubstr("there are: learning_rate, local_batch"));
  EXPECT_FALSE(engine.has_proposal());
}

TEST(Engine, AnotherWorldSizeIsAnotherView) {
  Engine engine(first_settings(), 3);
  engine.propose({{"world_size", 8.0, "", ""}});
  const Decision decision = engine.decide(engine.digest_words());
  EXPECT_EQ(decision.installed.at(0).view_version, 4);
  EXPECT_EQ(engine.view_version(), 4);
}

TEST(Engine, DetectsWordsThatWereNotReducedOverThisRank) {
  Engine engine(first_settings(), 1);
  const auto stale = engine.digest_words();
  engine.propose({{"local_batch", 64.0, "", ""}});
  message_of([&] { engine.decide(stale); }, ErrorCode::internal);
  message_of([&] { engine.decide(std::array{std::nan(""), std::nan("")}); },
             ErrorCode::internal);
}

TEST(Engine, RefusesAConfigurationWithANameTwice) {
  message_of(
      [] {
        Engine({{"a", SettingKind::hyper, 1.0, 0, 2}, {"a", SettingKind::hyper, 1.0, 0, 2}}, 1);
      },
      ErrorCode::usage);
}

// Law: whatever is proposed, by whom and when, all engines hold the same configuration, and it
// changed exactly at the steps where all proposals were equal and not empty.
TEST(EngineLaw, RandomProposalsNeverMakeConfigurationsDiffer) {
  std::mt19937 random(20240601);
  int installs = 0;
  int conflicts = 0;
  for (int world = 1; world <= 5; ++world) {
    std::vector<Engine> engines(static_cast<std::size_t>(world), Engine(first_settings(), 1));
    for (int step = 0; step < 400; ++step) {
      const bool together = random() % 3 != 0;
      const double common = 1.0 + static_cast<double>(random() % 4);
      std::vector<double> wanted;
      for (Engine& engine : engines) {
        const double batch = together ? common : 1.0 + static_cast<double>(random() % 4);
        wanted.push_back(batch);
        engine.propose({{"local_batch", batch, "", "P"}});
      }
      const double before = engines[0].number("local_batch");
      const bool equal = std::all_of(wanted.begin(), wanted.end(),
                                     [&](double batch) { return batch == wanted[0]; });
      const auto reduced = reduce(engines);
      std::vector<std::string> texts;
      for (Engine& engine : engines) {
        const Decision decision = engine.decide(reduced);
        ASSERT_EQ(decision.verdict == Verdict::conflict, !equal);
        ASSERT_EQ(engine.number("local_batch"), equal ? wanted[0] : before);
        ASSERT_EQ(engine.config_version(), engines[0].config_version());
        texts.push_back(engine.proposal_text());
      }
      installs += equal && wanted[0] != before;
      conflicts += !equal;
      if (equal) continue;
      for (Engine& engine : engines) EXPECT_THROW(engine.raise_conflict(texts), Error);
    }
  }
  EXPECT_GT(installs, 100);  // what the random walk really visited
  EXPECT_GT(conflicts, 100);
}

}  // namespace kf
