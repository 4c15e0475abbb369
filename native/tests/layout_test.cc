#include "executor/layout.h"

#include <gtest/gtest.h>

#include <vector>

#include "kf/error.h"

namespace kf {

namespace {

Schedule schedule_of(Collective collective, int world_size, int chunk_count) {
  Schedule schedule;
  schedule.collective = collective;
  schedule.world_size = world_size;
  schedule.chunk_count = chunk_count;
  return schedule;
}

}  // namespace

TEST(Layout, CutsOneTypeByElementsLikeChunkRange) {
  std::vector<double> data(10);
  const Layout layout({{data.data(), 10, DType::f64, ReduceOp::sum}});
  const Schedule ring = schedule_of(Collective::all_reduce, 4, 4);
  for (int chunk = 0; chunk < 4; ++chunk) {
    const ChunkRange expected = chunk_range(10, 4, chunk);
    const ByteRange range = layout.chunks(ring, chunk, 1);
    EXPECT_EQ(range.begin, 8 * expected.begin);
    EXPECT_EQ(range.end, 8 * (expected.begin + expected.count));
  }
}

TEST(Layout, NeverSplitsAnElementOfMixedPieces) {
  std::vector<float> grads(13);
  std::vector<double> sums(5);
  std::vector<std::uint8_t> flags(3);
  const Layout layout({{grads.data(), 13, DType::f32, ReduceOp::avg},
                       {sums.data(), 5, DType::f64, ReduceOp::sum},
                       {flags.data(), 3, DType::u8, ReduceOp::max}});
  const Schedule ring = schedule_of(Collective::all_reduce, 3, 3);
  std::int64_t total = 0;
  std::int64_t end = 0;
  for (int chunk = 0; chunk < 3; ++chunk) {
    const ByteRange range = layout.chunks(ring, chunk, 1);
    EXPECT_EQ(range.begin, end);
    end = range.end;
    std::int64_t walked = 0;
    for (Elements part = layout.elements_at(range, 0); part.count > 0;
         part = layout.elements_at(range, walked)) {
      walked += part.count * element_bytes(part.dtype);
    }
    EXPECT_EQ(walked, layout.payload_bytes(range));
    std::vector<Region> regions;
    layout.append_regions(range, regions);
    std::int64_t bytes = 0;
    for (const Region& region : regions) bytes += static_cast<std::int64_t>(region.size());
    EXPECT_EQ(bytes, walked);
    total += walked;
  }
  EXPECT_EQ(total, 13 * 4 + 5 * 8 + 3);
}

TEST(Layout, GivesOwnersEqualBlocksWhateverTheNumberOfChunks) {
  std::vector<float> data(6);
  const Layout layout({{data.data(), 6, DType::f32, ReduceOp::sum}});
  // 2 owners of 3 elements, 2 chunks each: 2 + 1 and 2 + 1, not 2 + 2 and 1 + 1
  const Schedule schedule = schedule_of(Collective::reduce_scatter, 2, 4);
  EXPECT_EQ(layout.chunks(schedule, 0, 2).end, 12);
  EXPECT_EQ(layout.chunks(schedule, 2, 1).begin, 12);
  EXPECT_EQ(layout.chunks(schedule, 3, 1).begin, 20);
}

TEST(Layout, RefusesImpossibleCounts) {
  EXPECT_THROW(Layout({{nullptr, -1, DType::f32, ReduceOp::sum}}), Error);
  EXPECT_THROW(Layout({{nullptr, std::int64_t{1} << 60, DType::f32, ReduceOp::sum}}), Error);
}

}  // namespace kf
