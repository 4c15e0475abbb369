// Proves that a schedule does what its collective promises. Pure: runs no communication.
//
// Terms: contribution: what one rank gives to a chunk; cell: one chunk on one rank.
// Threads: safe everywhere.
//
// How. Every cell holds the set of contributions it contains. The schedule is executed on these
// sets, round by round, with the meaning that kf/schedule.h states. A schedule passes if
//   * every number is in range, no rank sends to itself, no chunk is used by two channels;
//   * no transfer reads a cell that holds nothing, and none adds a contribution twice;
//   * no cell is written twice in a round, save by reduces alone (they have an order);
//   * at the end every rank holds each contribution, exactly once, where the collective says
//   so.
// A schedule that passes cannot dead-lock: each transfer waits only for transfers of earlier
// rounds of its channel, so what waits for what has no cycle.
// Source: symbolic verification as users ask for in github.com/microsoft/msccl issue 25.
//
// Cost: about one word operation per 64 ranks for each chunk moved; memory stays under 64 MiB.
#pragma once

#include "kf/schedule.h"

namespace kf {

// Throws Error{usage} with the first fault found: channel, round, ranks, chunk, what is wrong.
void validate(const Schedule& schedule);

// The part of it that reading needs: every number is in range, so that ranks and chunks may
// index arrays. Throws like validate().
void check_numbers(const Schedule& schedule);

}  // namespace kf
