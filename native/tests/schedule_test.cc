#include "kf/schedule.h"

#include <gtest/gtest.h>

#include "kf/error.h"

namespace kf {

TEST(ChunkRange, CutsWithoutGapsAndGivesTheRestToTheFirst) {
  for (const std::int64_t units : {0, 1, 7, 10, 1000}) {
    std::int64_t next = 0;
    for (int chunk = 0; chunk < 4; ++chunk) {
      const ChunkRange range = chunk_range(units, 4, chunk);
      EXPECT_EQ(range.begin, next);
      EXPECT_EQ(range.count, units / 4 + (chunk < units % 4 ? 1 : 0));
      next += range.count;
    }
    EXPECT_EQ(next, units);
  }
}

TEST(Collective, KeepsItsNameBothWays) {
  EXPECT_EQ(collective_from_string("all_to_all"), Collective::all_to_all);
  EXPECT_STREQ(to_string(Collective::reduce_scatter), "reduce_scatter");
  EXPECT_THROW(collective_from_string("allreduce"), Error);
  EXPECT_EQ(combine_from_string("reduce"), Combine::reduce);
  EXPECT_THROW(combine_from_string("add"), Error);
}

}  // namespace kf
