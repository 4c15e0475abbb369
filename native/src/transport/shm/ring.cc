#include "transport/shm/ring.h"

#include <algorithm>
#include <cstring>

namespace kf {

namespace {

std::size_t round_up(std::size_t bytes) noexcept {
  return (bytes + kLine - 1) / kLine * kLine;
}

}  // namespace

std::size_t RingProducer::room() noexcept {
  return bytes_ - static_cast<std::size_t>(head_ - tail_);
}

std::span<std::byte> RingProducer::reserve(std::size_t whole, bool all) noexcept {
  const std::size_t wanted = std::min(whole, max_payload());
  // bytes that are worth a record of their own
  const std::size_t least = all ? wanted : std::min(wanted, max_payload() / 2);
  for (bool fresh = false;; fresh = true) {
    const std::size_t at = static_cast<std::size_t>(head_) & (bytes_ - 1);
    const std::size_t to_end = bytes_ - at;
    const std::size_t free = room();
    const std::size_t here = std::min(to_end, free);
    if (here >= kLine + least) {
      return {memory_ + at + kLine, std::min(wanted, here - kLine)};
    }
    if (to_end < kLine + least && free >= to_end + kLine + round_up(least)) {
      Record skip{};
      skip.kind = RecordKind::skip;
      std::memcpy(memory_ + at, &skip, sizeof(skip));
      head_ += to_end;  // published together with the record that follows
      continue;
    }
    if (fresh) return {};
    tail_ = control_->tail.load(std::memory_order_acquire);
  }
}

void RingProducer::publish(const Record& header) noexcept {
  std::byte* at = memory_ + (static_cast<std::size_t>(head_) & (bytes_ - 1));
  std::memcpy(at, &header, sizeof(header));
  head_ += kLine + round_up(header.bytes);
  control_->head.store(head_, std::memory_order_release);
}

bool RingProducer::half_empty() const noexcept {
  return control_->head.load(std::memory_order_relaxed) -
             control_->tail.load(std::memory_order_acquire) <=
         bytes_ / 2;
}

const Record* RingConsumer::peek() noexcept {
  if (empty()) return nullptr;
  std::size_t at = static_cast<std::size_t>(tail_) & (bytes_ - 1);
  if (reinterpret_cast<const Record*>(memory_ + at)->kind == RecordKind::skip) {
    tail_ += bytes_ - at;  // a skip is never published without the record after it
    at = 0;
  }
  // a copy: what was checked must not change afterwards
  std::memcpy(&record_, memory_ + at, sizeof(record_));
  return &record_;
}

std::span<const std::byte> RingConsumer::payload() const noexcept {
  const std::byte* at = memory_ + (static_cast<std::size_t>(tail_) & (bytes_ - 1));
  return {at + kLine, record_.bytes};
}

bool RingConsumer::sound() const noexcept {
  const std::size_t at = static_cast<std::size_t>(tail_) & (bytes_ - 1);
  const std::uint64_t there = control_->head.load(std::memory_order_acquire) - tail_;
  const std::size_t length = kLine + round_up(record_.bytes);
  return length <= bytes_ - at && length <= there && there <= bytes_;
}

void RingConsumer::pop() noexcept {
  tail_ += kLine + round_up(record_.bytes);
  control_->tail.store(tail_, std::memory_order_release);
}

bool RingConsumer::owes_wake() const noexcept {
  return control_->wants_room.load(std::memory_order_relaxed) != 0 &&
         control_->head.load(std::memory_order_relaxed) - tail_ <= bytes_ / 2;
}

}  // namespace kf
