#include "kf/shared_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "kf/error.h"
#include "transport/shm/segment.h"

namespace kf {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kArenaBytes = std::size_t{256} << 20;  // of addresses, not of memory
constexpr std::size_t kMaxBuffer = std::size_t{1} << 46;

}  // namespace

class SharedMemory::Arena {
 public:
  explicit Arena(std::size_t bytes)
      : segment_(Segment::create("kf-buffers", bytes)), process_(::getpid()) {
    free_[0] = bytes;
  }
  // False in a forked child, which sees the parent's buffers but must not manage them.
  bool own() const noexcept { return process_ == ::getpid(); }
  const Segment& segment() const noexcept { return segment_; }

  // First fit; null when nothing is large enough.
  std::byte* take(std::size_t bytes) {
    for (auto block = free_.begin(); block != free_.end(); ++block) {
      const auto [offset, length] = *block;
      if (length < bytes) continue;
      free_.erase(block);
      if (length > bytes) free_[offset + bytes] = length - bytes;
      return segment_.data() + offset;
    }
    return nullptr;
  }

  void give_back(std::byte* buffer, std::size_t bytes) {
    auto offset = static_cast<std::size_t>(buffer - segment_.data());
    ::fallocate(segment_.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(offset), static_cast<off_t>(bytes));
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && next->first == offset + bytes) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += bytes;
        return;
      }
    }
    free_[offset] = bytes;
  }

 private:
  Segment segment_;
  pid_t process_;
  std::map<std::size_t, std::size_t> free_;  // length by offset
};

SharedMemory::SharedMemory() = default;
SharedMemory::~SharedMemory() = default;

SharedMemory::Arena& SharedMemory::add_arena(std::size_t bytes) {
  const std::size_t index = arena_count_.load(std::memory_order_relaxed);
  if (index == kMaxArenas) {
    throw Error(ErrorCode::transport, "registered buffers fill " + std::to_string(kMaxArenas) +
                                          " arenas, there is no room for more");
  }
  arenas_[index] = std::make_unique<Arena>(std::max(bytes, kArenaBytes));
  arena_count_.store(index + 1, std::memory_order_release);
  return *arenas_[index];
}

std::byte* SharedMemory::allocate(std::size_t bytes) {
  if (bytes > kMaxBuffer) {
    throw Error(ErrorCode::transport,
                "cannot share a buffer of " + std::to_string(bytes) + " bytes");
  }
  const std::size_t length = std::max(kPage, (bytes + kPage - 1) / kPage * kPage);
  const std::lock_guard lock(mutex_);
  std::byte* buffer = nullptr;
  const std::size_t count = arena_count_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < count && buffer == nullptr; ++i) {
    if (arenas_[i]->own()) buffer = arenas_[i]->take(length);
  }
  if (buffer == nullptr) buffer = add_arena(length).take(length);
  buffers_[buffer] = length;
  return buffer;
}

void SharedMemory::free(std::byte* buffer) {
  const std::lock_guard lock(mutex_);
  const auto found = buffers_.find(buffer);
  if (found == buffers_.end()) {
    throw Error(ErrorCode::usage, "not a registered buffer, or one that was freed before");
  }
  const auto place = find(buffer, found->second);
  if (!place) throw Error(ErrorCode::internal, "a registered buffer lies in no arena");
  Arena& arena = *arenas_[place->arena];
  if (arena.own()) arena.give_back(buffer, found->second);
  buffers_.erase(found);
}

std::optional<SharedMemory::Place> SharedMemory::find(const void* begin,
                                                      std::size_t bytes) const noexcept {
  const std::size_t count = arena_count_.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < count; ++i) {
    const Segment& segment = arenas_[i]->segment();
    if (!segment.contains(begin, bytes)) continue;
    const auto offset = static_cast<const std::byte*>(begin) - segment.data();
    return Place{static_cast<std::uint32_t>(i), segment.fd(),
                 static_cast<std::uint64_t>(offset)};
  }
  return std::nullopt;
}

std::size_t SharedMemory::bytes_in_use() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& [buffer, length] : buffers_) bytes += length;
  return bytes;
}

}  // namespace kf
