// Memory for buffers that peers of the same host may read where it lies, without a copy.
//
// Terms: arena: one run of shared memory from which buffers are cut; its number is never used
//        twice. Registered: lying in an arena.
// Threads: every call may be made by any thread. find() takes no lock.
// Ownership: owns its arenas; a session that uses it keeps it alive. Pages take memory when
//        they are first touched and give it back when their buffer is freed.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace kf {

class SharedMemory {
 public:
  struct Place {
    std::uint32_t arena;
    int fd;                // of the arena, in this process
    std::uint64_t offset;  // in the arena, in bytes
  };

  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Aligned to a page; contents undefined. Throws Error{transport} when there is no memory.
  std::byte* allocate(std::size_t bytes);
  // Takes what allocate() returned; throws Error{usage} for anything else, freed memory too.
  void free(std::byte* buffer);
  // Where [begin, begin + bytes) lies; nothing when it is not in one arena.
  std::optional<Place> find(const void* begin, std::size_t bytes) const noexcept;
  std::size_t bytes_in_use() const;  // of buffers, rounded up to pages

 private:
  class Arena;
  static constexpr std::size_t kMaxArenas = 1024;

  Arena& add_arena(std::size_t bytes);

  mutable std::mutex mutex_;
  std::array<std::unique_ptr<Arena>, kMaxArenas> arenas_;
  std::atomic<std::size_t> arena_count_{0};
  std::map<std::byte*, std::size_t> buffers_;  // length by address
};

}  // namespace kf
