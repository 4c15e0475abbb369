// One rank's share of a schedule: its transfers and what each must wait for. Independent of the
// buffer's size, so it is made once and used for every operation with that schedule.
//
// Terms: local transfer: a transfer this rank sends or receives;
//        predecessor: an earlier local transfer that touches the same chunks in a way that
//        matters: a send waits for the receives of earlier rounds (it reads what they wrote); a
//        receive waits for the sends of its own and earlier rounds (it overwrites what they
//        read) and for the receives that stand before it (reductions are applied in schedule
//        order, so results are the same bits from run to run).
// Threads: immutable after it is built; share it freely.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kf/schedule.h"

namespace kf {

struct LocalTransfer {
  std::uint32_t id;  // place in the schedule: channel by channel, round by round
  int peer;          // rank in the view, also when the schedule is that of a group
  bool is_send;
  Combine combine;
  int chunk_begin;
  int chunk_count;
  bool swaps;  // a send of chunks that a receive of the same round writes over
  // A reducing receive whose result is what the peer is sent next, while nobody else uses the
  // peer's chunks: index in Plan::transfers of the send that returns it, else -1.
  int returned_by;
  bool completes;  // a reducing receive after which these chunks hold all contributions
  bool settles;    // a receive of any kind after which they do
  std::vector<std::uint32_t> successors;  // indices into Plan::transfers
};

struct Plan {
  Schedule schedule;
  int rank = 0;              // this rank, as the schedule counts
  int self = 0;              // and as the view counts
  std::vector<int> members;  // rank in the view of each rank of the schedule; empty: the same
  std::vector<LocalTransfer> transfers;  // channel by channel, round by round; ids ascend
  // True: some receive completes only a part of its chunks, so averages are divided at the end.
  bool divide_at_end = false;
};

// `members`: the ranks of the view that run the schedule, in its order; empty: all of them.
// Throws Error{usage} if `rank` is outside the schedule's world.
std::shared_ptr<const Plan> make_plan(Schedule schedule, int rank,
                                      std::vector<int> members = {});

}  // namespace kf
