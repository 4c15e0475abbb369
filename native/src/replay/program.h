// A schedule cut to bytes and laid out for replay: flat arrays, no I/O, no clock.
//
// Terms: message: one transfer of one channel; segment: a piece of a message;
//        slot: one rank's part in one round of one channel: the messages it sends, and how many
//        it receives; slots of a rank and channel run in order of rounds;
//        lane: one segment of one channel.
// A slot opens when all that the rank must receive in earlier slots of its channel has arrived.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kf/replay.h"

namespace kf::replay {

// The (src, dst) pair that messages follow each other on.
struct Connection {
  int src;
  int dst;
  int egress;   // port index
  int ingress;  // port index
  double latency_s;
  bool local;  // inside one host
};

struct Message {  // 32 bytes: replays are bound by memory
  std::int64_t bytes;
  int src;
  int dst;
  int connection;
  int dst_slot;  // the slot that receives it
  bool reduce;
};

// What a message's ports carry in its round, for the round-by-round tier.
struct Load {
  double out_s;     // its egress port's whole load, in seconds
  double in_s;      // its ingress port's
  double reduce_s;  // all that dst reduces; 0 on all but one message per dst
};

struct Slot {
  int rank;
  int channel;
  int next;         // the rank's next slot in this channel, or -1
  int receives;     // messages that arrive in this slot
  int sends_begin;  // range in Program::sends
  int sends_end;
  std::int64_t cell;  // of its first segment, in Progress
};

struct Program {
  int world_size = 0;
  int channels = 0;
  std::int64_t segment_bytes = 0;  // 0: one segment
  std::vector<Message> messages;   // round-major within a channel
  std::vector<Load> loads;         // per message
  std::vector<int> round_begin;  // first message of each round, plus the end (one channel only)
  std::vector<int> sends;        // message indices grouped by slot
  std::vector<Slot> slots;
  std::vector<int> first_slot;    // [channel * world_size + rank], or -1
  std::vector<int> segments;      // per channel: number of segments
  std::vector<double> port_rate;  // bytes per second
  std::vector<Connection> connections;
  std::vector<std::array<int, 4>> paths;  // per connection: links that can limit it, then -1
  Fabric fabric;

  const Connection& connection(const Message& message) const noexcept {
    return connections[static_cast<std::size_t>(message.connection)];
  }

  // Frees what only a replay message by message needs.
  void drop_messages() {
    drop_slots();
    release(messages);
    release(round_begin);
  }

  // Frees all but messages and rounds.
  void drop_slots() {
    release(loads);
    release(sends);
    release(slots);
    release(first_slot);
  }

  // One channel that is not cut: rounds follow each other, nothing overlaps.
  bool one_lane() const noexcept {
    return channels == 0 || (channels == 1 && segments.front() == 1);
  }

  // `v = {}` would assign an empty list of elements and keep the room.
  template <typename T>
  static void release(std::vector<T>& v) {
    std::vector<T>().swap(v);
  }

  // Bytes of segment `segment` of `segments` of a message: equal shares, remainder first.
  std::int64_t segment_size(const Message& message, int segment,
                            int segment_count) const noexcept {
    const std::int64_t base = message.bytes / segment_count;
    return base + (segment < message.bytes % segment_count ? 1 : 0);
  }
};

// Throws Error{usage} if the schedule and the fabric do not fit.
Program make_program(const Schedule& schedule, const Fabric& fabric, std::int64_t buffer_bytes,
                     const ReplayOptions& options);

// Which slots are open, shared by the two event-driven engines.
class Progress {
 public:
  explicit Progress(const Program& program);

  // Calls opened(segment, slot) for every first slot, ready or not to send.
  template <typename Opened>
  void start(Opened&& opened) {
    for (int channel = 0; channel < program_.channels; ++channel) {
      for (int segment = 0; segment < segments(channel); ++segment) {
        for (int rank = 0; rank < program_.world_size; ++rank) {
          const int slot =
              program_
                  .first_slot[static_cast<std::size_t>(channel * program_.world_size + rank)];
          if (slot >= 0) open(segment, slot, opened);
        }
      }
    }
  }

  // One segment of a message arrived; calls opened(segment, slot) for each slot it opens.
  template <typename Opened>
  void arrive(int segment, const Message& message, Opened&& opened) {
    Cell& cell = cells_[cell_of(segment, message.dst_slot)];
    if (--cell.waiting == 0 && cell.open) advance(segment, message.dst_slot, opened);
  }

  // Throws Error{internal} naming a rank that still waits, if any does.
  void check_done() const;

  int segments(int channel) const noexcept {
    return program_.segments[static_cast<std::size_t>(channel)];
  }
  std::size_t cell_of(int segment, int slot) const noexcept {
    return static_cast<std::size_t>(program_.slots[static_cast<std::size_t>(slot)].cell +
                                    segment);
  }
  // Free for the engine: the latest of the slot's opening and its arrivals so far.
  double& latest_s(int segment, int slot) { return cells_[cell_of(segment, slot)].latest_s; }

 private:
  template <typename Opened>
  void open(int segment, int slot, Opened& opened) {
    Cell& cell = cells_[cell_of(segment, slot)];
    cell.open = true;
    opened(segment, slot);
    if (cell.waiting == 0) advance(segment, slot, opened);
  }
  template <typename Opened>
  void advance(int segment, int slot, Opened& opened) {
    const int next = program_.slots[static_cast<std::size_t>(slot)].next;
    if (next >= 0) open(segment, next, opened);
  }

  struct Cell {
    double latest_s = -std::numeric_limits<double>::infinity();
    int waiting = 0;  // receives still to come
    bool open = false;
  };

  const Program& program_;
  std::vector<Cell> cells_;
};

std::vector<double> run_rounds(const Program& program, std::span<const double> ready_s);
std::vector<double> run_ports(const Program& program, std::span<const double> ready_s);
// fraction: of the flows, how many may come or go before shares are computed again.
std::vector<double> run_batched(const Program& program, std::span<const double> ready_s,
                                double fraction);
std::vector<double> run_fluid(const Program& program, std::span<const double> ready_s);

}  // namespace kf::replay
