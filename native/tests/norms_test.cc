// Norms that all-reduces sum on the way: right, told in time, and the same bits on all ranks.
#include "kf/norm.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kf/error.h"
#include "worlds.h"

namespace kf {

namespace {

using testing::run_world;
using testing::soon;
using testing::WorldOptions;

constexpr std::int64_t kLengths[] = {0, 1, 7, 1000, 4099};

struct Case {
  std::string transport;
  int world_size;
  std::string schedule;
};

// A gradient of two types, and words that travel with it: their sum over the ranks is told.
struct Step {
  Step(std::int64_t count, int rank)
      : wide(static_cast<std::size_t>(count / 3)), narrow(static_cast<std::size_t>(count)) {
    std::mt19937_64 random(static_cast<std::uint64_t>(rank));
    std::normal_distribution<double> normal;
    for (double& value : wide) value = normal(random);
    for (float& value : narrow) value = static_cast<float>(normal(random));
  }
  double norm() const {
    return squared_norm(std::span(wide)) + squared_norm(std::span(narrow));
  }
  std::vector<Piece> gradient() {
    return {
        {narrow.data(), static_cast<std::int64_t>(narrow.size()), DType::f32, ReduceOp::avg},
        {wide.data(), static_cast<std::int64_t>(wide.size()), DType::f64, ReduceOp::avg}};
  }
  Piece told() { return {words.data(), 2, DType::f64, ReduceOp::sum}; }
  std::shared_ptr<NormSums> sums() {
    return std::make_shared<NormSums>(words.data(), [this](double norm) {
      words[0] = norm;
      words[1] += 1;
    });
  }

  std::vector<double> wide;
  std::vector<float> narrow;
  std::array<double, 2> words = {std::numeric_limits<double>::quiet_NaN(), 0};
};

}  // namespace

class Norms : public ::testing::TestWithParam<Case> {
 protected:
  // Both norms as each rank saw them, by `run`.
  template <class Run>
  void check(Run&& run) {
    const int n = GetParam().world_size;
    WorldOptions options;
    options.transport = GetParam().transport;
    options.session.schedule = GetParam().schedule;
    options.session.eager_bytes = 256;
    options.session.segment_bytes = 512;
    std::vector<std::vector<double>> results(static_cast<std::size_t>(n));
    run_world(n, options, [&](Session& session) {
      for (const std::int64_t count : kLengths) {
        double locals = 0;
        for (int rank = 0; rank < n; ++rank) locals += Step(count, rank).norm();
        for (int repeat = 0; repeat < 2; ++repeat) {  // the second runs a kept operation again
          Step step(count, session.rank());
          const auto norms = step.sums();
          run(session, step, norms);
          EXPECT_DOUBLE_EQ(step.words[1], n) << "told once on each rank";
          EXPECT_NEAR(step.words[0], locals, 1e-12 * locals) << count;
          EXPECT_NEAR(norms->result(), step.norm(), 1e-12 * step.norm()) << count;
          results[static_cast<std::size_t>(session.rank())].push_back(norms->result());
        }
      }
    });
    for (const auto& result : results) EXPECT_EQ(result, results[0]) << "the same bits";
  }
};

TEST_P(Norms, OneOperation) {
  check([](Session& session, Step& step, const std::shared_ptr<NormSums>& norms) {
    auto pieces = step.gradient();
    pieces.push_back(step.told());
    session.run(Collective::all_reduce, pieces, 0, "", soon(60), {}, norms);
  });
}

TEST_P(Norms, SeveralOperationsTellWithTheLast) {
  check([](Session& session, Step& step, const std::shared_ptr<NormSums>& norms) {
    std::vector<Session::Handle> handles;
    const auto gradient = step.gradient();
    for (const auto& pieces : {std::vector{gradient[0]}, {gradient[1], step.told()}}) {
      Call call;
      call.pieces = pieces;
      call.norms = norms;
      handles.push_back(session.start(std::move(call)));
    }
    for (const auto& handle : handles) session.wait(handle, soon(60));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, Norms,
    ::testing::Values(Case{"inproc", 1, "ring"}, Case{"inproc", 2, "ring"},
                      Case{"inproc", 3, "ring"}, Case{"inproc", 5, "ring(order=(4,2,0,1,3))"},
                      Case{"inproc", 4, "recursive_doubling"}, Case{"inproc", 5, "clique"},
                      Case{"inproc", 4, "halving_doubling"},
                      Case{"inproc", 5, "halving_doubling"}, Case{"inproc", 4, "star"},
                      Case{"inproc", 5, "binary_tree"}, Case{"inproc", 4, "double_binary_tree"},
                      Case{"inproc", 5, "binary_tree_star"},
                      Case{"inproc", 4, "multi_binary_tree_star"}, Case{"shm", 2, "ring"},
                      Case{"shm", 3, "clique"}, Case{"tcp", 2, "ring"}, Case{"tcp", 3, "star"},
                      Case{"mixed", 4, "ring"}));

TEST(NormsOfResults, AreMeasuredWithoutWordsToTell) {
  run_world(3, {}, [](Session& session) {
    Step step(100, session.rank());
    const auto norms = std::make_shared<NormSums>();
    session.run(Collective::all_reduce, step.gradient(), 0, "", soon(60), {}, norms);
    EXPECT_NEAR(norms->result(), step.norm(), 1e-12 * step.norm());
  });
}

TEST(NormsOfResults, SayWhatIsNotFinite) {
  run_world(2, {}, [](Session& session) {
    Step step(100, session.rank());
    if (session.rank() == 1) step.narrow[50] = std::numeric_limits<float>::quiet_NaN();
    const auto norms = std::make_shared<NormSums>();
    session.run(Collective::all_reduce, step.gradient(), 0, "", soon(60), {}, norms);
    EXPECT_FALSE(std::isfinite(norms->result()));
  });
}

TEST(NormsOfResults, AreForAllReduceOnly) {
  run_world(1, {}, [](Session& session) {
    Step step(1, 0);
    Call call;
    call.collective = Collective::broadcast;
    call.pieces = step.gradient();
    call.norms = step.sums();
    EXPECT_THROW(session.start(std::move(call)), Error);
  });
}

}  // namespace kf
