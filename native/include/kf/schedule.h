// A collective as data: who sends which chunk to whom, in which round. No I/O, no threads.
//
// Terms: buffer: the elements given to the collective, the same length on every rank;
//        chunk: a part of the buffer, numbered [0, chunk_count); sizes differ by at most one
//        unit; transfer: one message of a run of chunks; round: transfers that may run at once;
//        channel: a list of rounds that runs beside the other channels, on chunks of its own.
// Threads: a Schedule never changes after it is built; share it freely.
//
// Meaning. Within a channel rounds run in order. A transfer reads the sender's chunks as they
// were when its round began, so two ranks may swap chunks in one round. A rank that receives
// several `reduce` transfers of one chunk in one round adds them in the order they stand in.
// Channels touch disjoint chunks, so they may overlap in time.
//
// What stands in the chunks of rank r (n = world_size):
//                   before                         after
//   all_reduce      its contribution everywhere    the sum everywhere
//   reduce          its contribution everywhere    root has the sum
//   broadcast       root has the data              everyone has it
//   reduce_scatter  its contribution everywhere    the chunks owned by r hold the sum
//   all_gather      the chunks owned by r          every chunk
//   gather          the chunks owned by r          root has every chunk
//   scatter         root has every chunk           the chunks owned by r
//   all_to_all      chunk s*n+d starts on rank s   and ends on d; chunk_count = n*n
//   barrier         as all_reduce                  everyone has heard of everyone
// Rank r owns chunks [r*k, (r+1)*k) with k = chunk_count / n for the four "owned" collectives.
// A barrier moves knowledge, not numbers: hearing of a rank twice is harmless there.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kf {

enum class Collective : std::uint8_t {
  all_reduce,
  reduce,
  broadcast,
  reduce_scatter,
  all_gather,
  gather,
  scatter,
  all_to_all,
  barrier,
};

enum class Combine : std::uint8_t {
  replace,  // the receiver's chunk becomes the sender's
  reduce,   // the receiver's chunk becomes receiver (op) sender
};

struct Transfer {
  int src;          // rank, in [0, world_size)
  int dst;          // rank, in [0, world_size), never equal to src
  int chunk_begin;  // index of the first chunk, in [0, chunk_count)
  int chunk_count;  // >= 1; the run is contiguous
  Combine combine;  // what dst does with the bytes
  bool operator==(const Transfer&) const = default;
};

using Round = std::vector<Transfer>;

struct Channel {
  std::vector<Round> rounds;
  bool operator==(const Channel&) const = default;
};

struct Schedule {
  std::string name;  // generator and its arguments, e.g. "ring" or "tree(fanout=4)"
  Collective collective = Collective::all_reduce;
  int world_size = 1;
  int root = 0;  // meaningful for reduce, broadcast, gather, scatter
  int chunk_count = 1;
  std::vector<Channel> channels;
  bool operator==(const Schedule&) const = default;
};

// First unit and length, in units, of `chunk` when `units` are split into `chunk_count` chunks:
// the first units % chunk_count chunks get one unit more. The executor and the simulator both
// cut with this function, so they move the same bytes.
struct ChunkRange {
  std::int64_t begin;
  std::int64_t count;
};
ChunkRange chunk_range(std::int64_t units, int chunk_count, int chunk) noexcept;

const char* to_string(Collective collective) noexcept;
const char* to_string(Combine combine) noexcept;
Collective collective_from_string(const std::string& name);  // Throws Error{usage}
Combine combine_from_string(const std::string& name);        // Throws Error{usage}

}  // namespace kf
