#include "session/select.h"

#include <gtest/gtest.h>

namespace kf {
namespace {

TEST(SelectSchedule, KeepsTheSessionsOwnWhereItOffersTheCollective) {
  EXPECT_EQ(select_schedule("star(root=1)", Collective::all_reduce, 1 << 20, 4),
            "star(root=1)");
  EXPECT_EQ(select_schedule("ring", Collective::all_reduce, 8, 2), "ring");
}

TEST(SelectSchedule, ChoosesBySizeWhereItDoesNot) {
  EXPECT_EQ(select_schedule("recursive_doubling", Collective::gather, 1000, 4),
            "auto(buffer_bytes=1024)");
}

// One round for a small buffer; a ring for a large one, so that ranks of one host can read each
// other's memory in place.
TEST(SelectSchedule, GivesTwoRanksARingAboveTheExchangedSize) {
  EXPECT_EQ(select_schedule("auto", Collective::all_reduce, 32 * 1024, 2),
            "auto(buffer_bytes=32768)");
  EXPECT_EQ(select_schedule("auto", Collective::all_reduce, 32 * 1024 + 1, 2), "ring");
  EXPECT_NE(select_schedule("auto", Collective::all_reduce, 32 * 1024 + 1, 3), "ring");
  EXPECT_NE(select_schedule("auto", Collective::broadcast, 32 * 1024 + 1, 2), "ring");
}

TEST(SelectSchedule, KeepsMeasuredNumbersAndForgetsHostsInGroups) {
  const char* measured = "auto(latency_s=1e-05,ranks_per_host=2,host_latency_s=1e-06)";
  EXPECT_EQ(select_schedule(measured, Collective::all_reduce, 1000, 4),
            "auto(buffer_bytes=1024,latency_s=1e-05,ranks_per_host=2,host_latency_s=1e-06)");
  EXPECT_EQ(select_schedule(measured, Collective::all_reduce, 1000, 4, true),
            "auto(buffer_bytes=1024,latency_s=1e-05)");
  EXPECT_EQ(select_schedule("auto(buffer_bytes=9)", Collective::all_reduce, 1000, 4),
            "auto(buffer_bytes=9)");
}

}  // namespace
}  // namespace kf
