#include "session/select.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

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

TEST(SelectSchedule, KeepsMeasuredNumbers) {
  const char* measured = "auto(latency_s=1e-05,ranks_per_host=2,host_latency_s=1e-06)";
  EXPECT_EQ(select_schedule(measured, Collective::all_reduce, 1000, 4),
            "auto(buffer_bytes=1024,latency_s=1e-05,ranks_per_host=2,host_latency_s=1e-06)");
  EXPECT_EQ(select_schedule("auto(buffer_bytes=9)", Collective::all_reduce, 1000, 4),
            "auto(buffer_bytes=9)");
}

// Sessions of four hosts with three ranks each.
TEST(SelectSchedule, UsesTheHostsOfAGroupsMembers) {
  const char* measured =
      "auto(latency_s=1e-04,bytes_per_s=1e8,reduce_bytes_per_s=5e9,ranks_per_host=3,"
      "host_latency_s=1e-06,host_bytes_per_s=4e9)";
  const auto of = [&](const std::vector<int>& members) {
    return select_schedule(measured, Collective::all_reduce, 1 << 20,
                           static_cast<int>(members.size()), members);
  };
  const std::string start = "auto(buffer_bytes=1048576,";
  const std::string one_host =
      start + "reduce_bytes_per_s=5e9,latency_s=1e-06,bytes_per_s=4e9)";
  EXPECT_EQ(of({3, 4, 5}), one_host);
  EXPECT_EQ(of({8, 6, 7}), one_host);
  const std::string between = start + "latency_s=1e-04,bytes_per_s=1e8,reduce_bytes_per_s=5e9";
  const std::string pairs =
      between + ",ranks_per_host=2,host_latency_s=1e-06,host_bytes_per_s=4e9)";
  EXPECT_EQ(of({0, 1, 3, 4}), pairs);
  EXPECT_EQ(of({10, 9, 2, 1, 6, 7}), pairs);
  EXPECT_EQ(of({0, 3, 6, 9}), between + ")");        // one of each host
  EXPECT_EQ(of({0, 1, 3}), between + ")");           // unequal
  EXPECT_EQ(of({0, 1, 3, 4, 2, 5}), between + ")");  // of one host, but not in a row
}

// Groups of a session whose ranks are on one host, or whose hosts have no order.
TEST(SelectSchedule, KeepsTheLinksOfASessionWithoutHosts) {
  const std::vector<int> members = {0, 2, 3};
  EXPECT_EQ(select_schedule("auto(latency_s=1e-05)", Collective::broadcast, 8, 3, members),
            "auto(buffer_bytes=8,latency_s=1e-05)");
  EXPECT_EQ(select_schedule("auto", Collective::broadcast, 8, 3, members),
            "auto(buffer_bytes=8)");
}

}  // namespace
}  // namespace kf
