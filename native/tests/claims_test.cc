#include "session/claims.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <string>

#include "executor/sequences.h"
#include "kf/error.h"
#include "kf/inproc.h"
#include "kf/session.h"

namespace kf {
namespace {

TEST(Sequences, CountEachScopeAndTakeLittleMemory) {
  Sequences sequences;
  constexpr std::uint64_t kScopes = 100'000;
  for (int turn = 0; turn < 3; ++turn) {
    for (std::uint64_t scope = 1; scope <= kScopes; ++scope) {
      ASSERT_EQ(sequences.take(scope << 20), static_cast<std::uint64_t>(turn));
    }
  }
  EXPECT_EQ(sequences.next(7 << 20), 3U);
  EXPECT_EQ(sequences.next(7), 0U);
  EXPECT_LE(sequences.bytes(), 48 * kScopes);
}

TEST(Claims, SpansSayWhatIsOnlyRead) {
  std::array<float, 8> memory{};
  const std::vector<Piece> pieces = {{memory.data(), 8, DType::f32, ReduceOp::sum}};
  const auto writes = [&](Collective collective, bool is_root) {
    std::vector<MemorySpan> spans;
    append_spans(pieces, collective, is_root, -1, 2, spans);
    return spans.at(0).writes;
  };
  EXPECT_TRUE(writes(Collective::all_reduce, false));
  EXPECT_TRUE(writes(Collective::broadcast, false));
  EXPECT_FALSE(writes(Collective::broadcast, true));
  std::vector<MemorySpan> spans;
  append_spans(pieces, Collective::all_reduce, false, -1, 2, spans);
  EXPECT_EQ(spans[0].end - spans[0].begin, sizeof(memory));
}

}  // namespace
}  // namespace kf
