// A queue of records in shared memory with one producer and one consumer, in two processes.
//
// Terms: record: a header of one cache line and up to max_payload() contiguous bytes;
//        position: bytes since the ring was made, so it never runs backwards.
// Threads: one producer thread and one consumer thread at a time; both without locks.
// Ownership: the memory belongs to a Segment that must outlive both ends.
//
// The consumer works on the bytes where they lie and gives the room back afterwards. Records
// are short, so that the consumer starts while the rest is being written and finds each in a
// cache; the ring is long, so that the producer seldom waits for room.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kf/transport.h"

namespace kf {

inline constexpr std::size_t kLine = 64;
inline constexpr std::size_t kMaxRecord = 32 * 1024;  // header included

// What both ends know of each other; every word is written by one end only.
struct RingControl {
  alignas(kLine) std::atomic<std::uint64_t> head;  // producer: position after the last record
  alignas(kLine) std::atomic<std::uint64_t> tail;  // consumer: position of the next record
  std::atomic<std::uint64_t> returned;             // consumer: lent records it has done with
  std::atomic<std::uint32_t> borrowing;            // consumer: it uses lent memory right now
  alignas(kLine) std::atomic<std::uint64_t> wake_at_returned;  // producer: wake me from this on
  std::atomic<std::uint32_t> wants_room;  // producer: wake me when half of the ring is free
  std::atomic<std::uint32_t> revoked;     // producer: what it has lent is no longer its to lend
};

enum class RecordKind : std::uint8_t {
  frame = 1,   // begins a frame; carries the first bytes of its payload
  more = 2,    // further bytes of the frame
  lend = 3,    // begins and ends a frame; carries Loans that say where the payload lies
  placed = 4,  // begins and ends a frame whose payload was written to its place before
  skip = 5,    // nothing: the rest of the ring before its first byte
};

struct alignas(kLine) Record {
  RecordKind kind;
  FrameKind frame_kind;
  std::uint8_t code;
  std::uint32_t bytes;  // that follow the header
  std::uint32_t transfer;
  std::uint32_t cell;
  std::uint64_t scope;
  std::uint64_t sequence;
  std::uint64_t fingerprint;
  std::uint64_t payload_bytes;  // of the whole frame
};
static_assert(sizeof(Record) == kLine);

// One run of bytes of a lent payload.
struct Loan {
  std::uint32_t arena;  // number of the sender's arena, or kPrivate
  std::int32_t fd;      // the sender's descriptor of that arena
  std::uint64_t at;     // offset in the arena, or address in the sender's process
  std::uint64_t bytes;
};
inline constexpr std::uint32_t kPrivate = ~std::uint32_t{0};

class RingProducer {
 public:
  RingProducer(RingControl* control, std::byte* memory, std::size_t bytes) noexcept
      : control_(control), memory_(memory), bytes_(bytes) {}

  std::size_t max_payload() const noexcept { return std::min(bytes_ / 8, kMaxRecord) - kLine; }
  // Room for the payload of one record: `whole` bytes or, unless `all`, a good part of them.
  // No data pointer: no room. An empty payload has a data pointer too.
  std::span<std::byte> reserve(std::size_t whole, bool all) noexcept;
  void publish(const Record& header) noexcept;  // of the payload reserved last, header.bytes
  bool half_empty() const noexcept;             // any thread may ask
  RingControl& control() const noexcept { return *control_; }

 private:
  std::size_t room() noexcept;
  RingControl* control_;
  std::byte* memory_;
  std::size_t bytes_;  // a power of two
  std::uint64_t head_ = 0;
  std::uint64_t tail_ = 0;  // as last seen
};

class RingConsumer {
 public:
  RingConsumer(RingControl* control, std::byte* memory, std::size_t bytes) noexcept
      : control_(control), memory_(memory), bytes_(bytes) {}

  bool empty() const noexcept {
    return control_->head.load(std::memory_order_acquire) == tail_;
  }
  // A copy of the next record, and its bytes in place; null when there is none. Skips are taken
  // care of.
  const Record* peek() noexcept;
  std::span<const std::byte> payload() const noexcept;
  bool sound() const noexcept;      // the record peeked last lies within the ring
  void pop() noexcept;              // gives the room of the record peeked last back
  bool owes_wake() const noexcept;  // the producer wants to know of the room there is now
  RingControl& control() const noexcept { return *control_; }

 private:
  RingControl* control_;
  std::byte* memory_;
  std::size_t bytes_;
  std::uint64_t tail_ = 0;
  Record record_{};  // as peeked last
};

}  // namespace kf
