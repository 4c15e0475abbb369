// Frames between this rank and one other of the same host, over a pair of rings.
//
// Terms: inline: payload copied into the ring with its header, then in records of its own while
//        there is more; lent: the receiver is told where the payload lies and reads it there.
// Threads: used under the owner's lock only, except pending(), which the thread that drives the
//        transport calls without it.
// Ownership: owns the mapping of the peer's segment and the socket that shows its death.
//
// Small payloads are always copied: the sender need not wait until they were read. Large ones
// are lent where the receiver can read them (Frame::may_lend).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "kf/shared_memory.h"
#include "kf/transport.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/loans.h"
#include "transport/shm/ring.h"
#include "transport/shm/segment.h"
#include "transport/tcp/socket.h"

namespace kf {

// Everything negotiated with one peer.
struct LinkParts {
  int peer = -1;
  int pid = 0;
  Segment segment;  // the peer's
  RingProducer out;
  RingConsumer in;
  Bell* bell;                       // the peer's
  Fd socket;                        // closes when the peer's session ends
  Fd process;                       // readable when the peer's process has ended; may be empty
  bool peer_reads_private = false;  // the peer can read this process's private memory
};

class Link {
 public:
  Link(LinkParts parts, const SharedMemory* registered)
      : parts_(std::move(parts)), registered_(registered), borrower_(parts_.pid) {}

  int peer() const noexcept { return parts_.peer; }
  int socket() const noexcept { return parts_.socket.get(); }
  int process() const noexcept { return parts_.process.get(); }
  bool open() const noexcept { return open_; }
  bool queued() const noexcept { return queued_.load(std::memory_order_relaxed); }

  bool send_data(const Frame& frame, std::span<const Region> regions, std::uint64_t ticket);
  void send_control(const Frame& frame, std::string_view text);
  // Delivers at most one frame and sends what there is room for; a reason when the peer is
  // lost.
  std::string progress(FrameSink& sink);
  bool pending() const noexcept;               // progress() would find something to do
  void mark_gone() noexcept { gone_ = true; }  // no more records than are in the ring now

  bool drain() noexcept;  // sends without telling anyone; true when nothing is left
  void drop_data() noexcept;
  // Takes back what is lent; true when the peer does not use it any more.
  bool revoke() noexcept;
  void close() noexcept;

 private:
  struct Outgoing {
    Frame frame;
    std::vector<Region> regions;
    std::string text;
    std::uint64_t ticket = 0;
    bool is_data = false;
    bool begun = false;
    std::uint64_t done = 0;  // payload bytes in the ring already
    std::size_t region = 0;  // where the next one is
    std::size_t offset = 0;
  };
  enum class Step { none, moved, broken };

  bool lend(const Frame& frame, std::span<const Region> regions, std::uint64_t ticket);
  bool write(Outgoing& out) noexcept;  // true when the whole frame is in the ring
  void tell_peer() noexcept;
  bool collect_returns(FrameSink& sink);
  void flush(FrameSink& sink);
  void note_queue() noexcept;
  Step receive(FrameSink& sink, std::string& failure);
  void last_words(FrameSink& sink);
  bool begin(const Record& record, FrameSink& sink);
  bool deliver(std::span<const std::byte> bytes, FrameSink& sink);
  void copy_to_regions(std::span<const std::byte> bytes) noexcept;
  std::string borrow(FrameSink& sink);
  std::string borrow_copy();
  std::string borrow_stream(FrameSink& sink);

  LinkParts parts_;
  const SharedMemory* registered_;
  Borrower borrower_;
  std::deque<Outgoing> queue_;
  std::deque<std::uint64_t> lent_;  // tickets, in the order of their records
  std::uint64_t returned_ = 0;      // lent records that came back
  std::atomic<std::uint64_t> lent_total_{0};
  std::atomic<bool> queued_{false};
  std::vector<Loan> loans_;
  bool open_ = true;
  bool gone_ = false;

  Frame frame_;  // incoming
  Delivery delivery_;
  bool midway_ = false;  // more records of frame_ are to come
  std::uint64_t left_ = 0;
  std::size_t region_ = 0;
  std::byte carry_[32] = {};  // the first bytes of an element cut by the end of a record
  std::size_t carried_ = 0;
};

}  // namespace kf
