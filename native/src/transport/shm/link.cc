#include "transport/shm/link.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace kf {

namespace {

constexpr std::uint64_t kLendBytes = 16 * 1024;  // of registered memory
// Private memory costs a system call and pinned pages a time: below these sizes, of a payload
// and of all an operation sends to the peer, slots in the cache are faster.
constexpr std::uint64_t kLendPrivateBytes = 64 * 1024;
constexpr std::uint64_t kLendPrivateOperation = 16 * 1024 * 1024;
constexpr int kRecordsAtOnce = 16;  // of one frame, before others have a turn

Record header_of(const Frame& frame, RecordKind kind, std::size_t bytes) noexcept {
  Record record{};
  record.kind = kind;
  record.frame_kind = frame.kind;
  record.code = frame.code;
  record.bytes = static_cast<std::uint32_t>(bytes);
  record.transfer = frame.transfer;
  record.cell = frame.cell;
  record.scope = frame.key.scope;
  record.sequence = frame.key.sequence;
  record.fingerprint = frame.fingerprint;
  record.payload_bytes = frame.payload_bytes;
  return record;
}

// Copies the next payload bytes of `regions` into the record and moves the place on.
void gather(std::span<const Region> regions, std::size_t& region, std::size_t& offset,
            std::span<std::byte> to) noexcept {
  std::size_t done = 0;
  while (done < to.size()) {
    const Region& from = regions[region];
    const std::size_t part = std::min(to.size() - done, from.size() - offset);
    std::memcpy(to.data() + done, from.data() + offset, part);
    done += part;
    offset += part;
    if (offset == from.size()) {
      ++region;
      offset = 0;
    }
  }
}

}  // namespace

void Link::tell_peer() noexcept {
  if (!ring(*parts_.bell)) return;
  const char byte = 0;
  [[maybe_unused]] const ssize_t sent =
      ::send(parts_.socket.get(), &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool Link::lend(const Frame& frame, std::span<const Region> regions, std::uint64_t ticket) {
  const bool attachable = parts_.peer_reads_private &&
                          frame.payload_bytes >= kLendPrivateBytes &&
                          frame.operation_bytes >= kLendPrivateOperation;
  if (!describe_loans(registered_, attachable, regions, loans_)) return false;
  const std::size_t bytes = loans_.size() * sizeof(Loan);
  if (bytes > parts_.out.max_payload()) return false;
  const std::span<std::byte> room = parts_.out.reserve(bytes, true);
  if (room.data() == nullptr) return false;
  if (bytes > 0) std::memcpy(room.data(), loans_.data(), bytes);
  lent_.push_back(ticket);
  // only the last one is worth waking for: the peer gives all back without waiting for this
  // rank
  const std::uint64_t total = lent_total_.load(std::memory_order_relaxed) + 1;
  lent_total_.store(total, std::memory_order_relaxed);
  parts_.out.control().wake_at_returned.store(total, std::memory_order_relaxed);
  parts_.out.publish(header_of(frame, RecordKind::lend, bytes));
  tell_peer();
  return true;
}

bool Link::send_data(const Frame& frame, std::span<const Region> regions,
                     std::uint64_t ticket) {
  if (!open_) return true;  // lost() has been, or is about to be, reported
  const bool may_lend = frame.may_lend && frame.payload_bytes >= kLendBytes;
  if (queue_.empty() && !frame.in_place) {
    if (may_lend && lend(frame, regions, ticket)) return false;
    const auto bytes = static_cast<std::size_t>(frame.payload_bytes);
    const std::span<std::byte> room = bytes <= parts_.out.max_payload()
                                          ? parts_.out.reserve(bytes, true)
                                          : std::span<std::byte>{};
    if (room.data() != nullptr) {  // the common case of small messages, without a queue
      std::size_t region = 0;
      std::size_t offset = 0;
      gather(regions, region, offset, room);
      parts_.out.publish(header_of(frame, RecordKind::frame, bytes));
      tell_peer();
      return true;
    }
  }
  if (frame.in_place && queue_.empty()) {
    const std::span<std::byte> room = parts_.out.reserve(0, true);
    if (room.data() != nullptr) {
      parts_.out.publish(header_of(frame, RecordKind::placed, 0));
      tell_peer();
      return true;
    }
  }
  queue_.push_back({frame, {regions.begin(), regions.end()}, {}, ticket, true, false, 0, 0, 0});
  const bool written = queue_.size() == 1 && write(queue_.front());
  if (written) queue_.pop_front();
  note_queue();
  return written;
}

// Has the peer wake this rank when there is room, while and only while something waits for it.
void Link::note_queue() noexcept {
  const bool queued = !queue_.empty();
  if (queued == queued_.load(std::memory_order_relaxed)) return;
  queued_.store(queued, std::memory_order_relaxed);
  parts_.out.control().wants_room.store(queued ? 1 : 0, std::memory_order_relaxed);
}

void Link::send_control(const Frame& frame, std::string_view text) {
  if (!open_) return;
  Frame sized = frame;
  // a text is one record: with more than 64 ranks a host those are short
  const std::string_view bounded =
      text.substr(0, std::min(kMaxControlBytes, parts_.out.max_payload()));
  sized.payload_bytes = bounded.size();
  queue_.push_back({sized, {}, std::string(bounded), 0, false, false, 0, 0, 0});
  if (queue_.size() == 1 && write(queue_.front())) queue_.pop_front();
  note_queue();
}

bool Link::write(Outgoing& out) noexcept {
  const Region text(reinterpret_cast<std::byte*>(out.text.data()), out.text.size());
  const std::span<const Region> regions =
      out.is_data ? std::span<const Region>(out.regions) : std::span(&text, 1);
  for (;;) {
    const auto left = out.frame.in_place
                          ? std::size_t{0}
                          : static_cast<std::size_t>(out.frame.payload_bytes - out.done);
    if (out.begun && left == 0) return true;
    const std::span<std::byte> room = parts_.out.reserve(left, !out.is_data);
    if (room.data() == nullptr) return false;
    gather(regions, out.region, out.offset, room);
    out.done += room.size();
    const RecordKind first = out.frame.in_place ? RecordKind::placed : RecordKind::frame;
    parts_.out.publish(header_of(out.frame, out.begun ? RecordKind::more : first, room.size()));
    out.begun = true;
    tell_peer();
  }
}

bool Link::collect_returns(FrameSink& sink) {
  const std::uint64_t returned = parts_.out.control().returned.load(std::memory_order_acquire);
  if (returned == returned_) return false;
  while (returned_ != returned && !lent_.empty()) {
    ++returned_;
    const std::uint64_t ticket = lent_.front();
    lent_.pop_front();
    sink.sent(ticket);
  }
  return true;
}

void Link::flush(FrameSink& sink) {
  while (!queue_.empty()) {
    Outgoing& next = queue_.front();
    if (next.is_data && !next.begun && next.frame.may_lend && !next.frame.in_place &&
        next.frame.payload_bytes >= kLendBytes && lend(next.frame, next.regions, next.ticket)) {
      queue_.pop_front();
      continue;
    }
    if (!write(next)) break;
    const std::uint64_t ticket = next.ticket;
    const bool is_data = next.is_data;
    queue_.pop_front();
    if (is_data) sink.sent(ticket);
  }
  note_queue();
}

std::string Link::progress(FrameSink& sink) {
  if (!open_) return {};
  std::string failure;
  const bool gone = gone_;  // read before the ring: what is there now is all there will be
  if (!lent_.empty()) collect_returns(sink);
  if (!queue_.empty()) flush(sink);
  Step step = receive(sink, failure);
  for (int i = 1; i < kRecordsAtOnce && step == Step::moved && midway_; ++i) {
    if (!queue_.empty()) flush(sink);
    step = receive(sink, failure);
  }
  if (step == Step::broken) return failure.empty() ? "it broke the protocol" : failure;
  if (step == Step::none && gone && parts_.in.empty()) return "its process or session ended";
  return {};
}

bool Link::pending() const noexcept {
  if (!open_) return false;
  if (gone_ || !parts_.in.empty()) return true;
  if (parts_.out.control().returned.load(std::memory_order_acquire) != returned_) return true;
  return queued() && parts_.out.half_empty();
}

Link::Step Link::receive(FrameSink& sink, std::string& failure) {
  const Record* record = parts_.in.peek();
  if (record == nullptr) return Step::none;
  // what the peer gave back before it sent this may be what the message has to wait for
  if (!lent_.empty()) collect_returns(sink);
  if (!parts_.in.sound()) return Step::broken;
  if (record->kind == RecordKind::more) {
    if (!midway_) return Step::broken;
  } else if (midway_ || !begin(*record, sink)) {
    return Step::broken;
  }
  const bool lent = record->kind == RecordKind::lend;
  if (record->kind == RecordKind::placed) {
    left_ = 0;
  } else if (lent) {
    failure = borrow(sink);
    if (!failure.empty()) {
      last_words(sink);
      return Step::broken;
    }
  } else if (frame_.kind != FrameKind::data) {
    const std::span<const std::byte> text = parts_.in.payload();
    sink.control(peer(), frame_, {reinterpret_cast<const char*>(text.data()), text.size()});
  } else if (!deliver(parts_.in.payload(), sink)) {
    return Step::broken;
  }
  RingControl& control = parts_.in.control();
  parts_.in.pop();
  if (lent) {
    const std::uint64_t returned = control.returned.load(std::memory_order_relaxed) + 1;
    control.returned.store(returned, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (returned == control.wake_at_returned.load(std::memory_order_relaxed)) tell_peer();
  }
  if (parts_.in.owes_wake()) tell_peer();
  midway_ = frame_.kind == FrameKind::data && left_ > 0;
  if (frame_.kind == FrameKind::data && !midway_) sink.finished(delivery_);
  return Step::moved;
}

// A peer takes back what it has lent when its session ends, and says before it does so why:
// then the rank that it lost is to blame, and not the peer.
void Link::last_words(FrameSink& sink) {
  parts_.in.pop();  // the record whose loan cannot be read
  while (const Record* record = parts_.in.peek()) {
    if (!parts_.in.sound()) return;
    if (record->kind == RecordKind::frame && record->frame_kind != FrameKind::data) {
      begin(*record, sink);
      const std::span<const std::byte> text = parts_.in.payload();
      sink.control(peer(), frame_, {reinterpret_cast<const char*>(text.data()), text.size()});
    }
    parts_.in.pop();
  }
}

bool Link::begin(const Record& record, FrameSink& sink) {
  frame_.kind = record.frame_kind;
  frame_.code = record.code;
  frame_.transfer = record.transfer;
  frame_.cell = record.cell;
  frame_.key = {record.scope, record.sequence};
  frame_.fingerprint = record.fingerprint;
  frame_.payload_bytes = record.payload_bytes;
  left_ = 0;
  if (frame_.kind != FrameKind::data) return record.kind == RecordKind::frame;
  if (!sink.begin(peer(), frame_, delivery_)) return false;
  left_ = frame_.payload_bytes;
  region_ = 0;
  carried_ = 0;
  return true;
}

void Link::copy_to_regions(std::span<const std::byte> bytes) noexcept {
  while (!bytes.empty()) {
    Region& region = delivery_.regions[region_];
    const std::size_t part = std::min(region.size(), bytes.size());
    std::memcpy(region.data(), bytes.data(), part);
    region = region.subspan(part);
    bytes = bytes.subspan(part);
    if (region.empty()) ++region_;
  }
}

// False: more bytes than the frame has, or a whole message of which the sink leaves some.
bool Link::deliver(std::span<const std::byte> bytes, FrameSink& sink) {
  if (bytes.size() > left_) return false;
  left_ -= bytes.size();
  if (delivery_.mode == Delivery::Mode::direct) {
    copy_to_regions(bytes);
    return true;
  }
  if (carried_ > 0) {  // completes the element whose first bytes came with the last record
    const std::size_t before = carried_;
    const std::size_t added = std::min(bytes.size(), sizeof(carry_) - carried_);
    std::memcpy(carry_ + carried_, bytes.data(), added);
    const std::size_t taken = sink.consume(delivery_, {carry_, before + added});
    if (taken <= before) return false;
    bytes = bytes.subspan(taken - before);
    carried_ = 0;
  }
  if (!bytes.empty()) bytes = bytes.subspan(sink.consume(delivery_, bytes));
  if (bytes.size() > sizeof(carry_) / 2 || (left_ == 0 && !bytes.empty())) return false;
  if (!bytes.empty()) std::memcpy(carry_, bytes.data(), bytes.size());
  carried_ = bytes.size();
  return true;
}

// Uses a lent payload where it lies. While it does, the lender's close() waits; a lender that
// has closed may have changed the memory, which counts for nothing then, and the peer as lost.
std::string Link::borrow(FrameSink& sink) {
  const std::span<const std::byte> list = parts_.in.payload();
  if (list.size() % sizeof(Loan) != 0) return "it broke the protocol";
  loans_.resize(list.size() / sizeof(Loan));
  if (!loans_.empty()) std::memcpy(loans_.data(), list.data(), list.size());
  RingControl& control = parts_.in.control();
  control.borrowing.store(1, std::memory_order_seq_cst);
  std::string failure;
  if (control.revoked.load(std::memory_order_seq_cst) != 0) {
    failure = "its session ended before its data were read";
  } else {
    failure = delivery_.mode == Delivery::Mode::direct ? borrow_copy() : borrow_stream(sink);
  }
  control.borrowing.store(0, std::memory_order_release);
  return failure;
}

std::string Link::borrow_copy() {
  for (const Loan& loan : loans_) {
    if (loan.bytes > left_) return "it broke the protocol";
    left_ -= loan.bytes;
    for (std::uint64_t done = 0; done < loan.bytes;) {
      Region& region = delivery_.regions[region_];
      const auto part =
          static_cast<std::size_t>(std::min<std::uint64_t>(region.size(), loan.bytes - done));
      const std::string failure = borrower_.copy(loan, region.data(), done, part);
      if (!failure.empty()) return failure;
      done += part;
      region = region.subspan(part);
      if (region.empty()) ++region_;
    }
  }
  return left_ == 0 ? std::string() : "it broke the protocol";
}

// Where the result is to be returned it is written back while both are in the cache.
std::string Link::borrow_stream(FrameSink& sink) {
  // with one run of bytes on both sides their places correspond
  const bool may_return =
      delivery_.may_return && loans_.size() == 1 && delivery_.regions.size() == 1;
  bool sound = true;
  const auto use = [&](std::span<const std::byte> bytes) -> std::span<std::byte> {
    const auto at = static_cast<std::size_t>(frame_.payload_bytes - left_);
    sound = sound && deliver(bytes, sink);
    if (!may_return || !sound) return {};
    return delivery_.regions[0].subspan(at, bytes.size());
  };
  for (const Loan& loan : loans_) {
    if (loan.bytes > left_) return "it broke the protocol";
    const std::string failure = borrower_.visit(loan, use);
    if (!failure.empty()) return failure;
    if (!sound) return "it broke the protocol";
  }
  delivery_.returned = may_return;
  return left_ == 0 ? std::string() : "it broke the protocol";
}

bool Link::drain() noexcept {
  while (open_ && !gone_ && !queue_.empty()) {
    if (!write(queue_.front())) return false;
    queue_.pop_front();
  }
  return true;
}

void Link::drop_data() noexcept {
  std::erase_if(queue_, [](const Outgoing& out) { return out.is_data && !out.begun; });
}

bool Link::revoke() noexcept {
  RingControl& control = parts_.out.control();
  control.revoked.store(1, std::memory_order_seq_cst);
  return gone_ || control.borrowing.load(std::memory_order_seq_cst) == 0;
}

void Link::close() noexcept {
  if (!open_) return;
  open_ = false;
  revoke();
  tell_peer();
  parts_.socket.reset();
  parts_.process.reset();
  queue_.clear();
  lent_.clear();
}

}  // namespace kf
