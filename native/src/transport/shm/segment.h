// Memory that processes of one host share: anonymous files, mapped by number, without a name.
//
// A segment is a memfd. Another process of the same user opens it through /proc/<pid>/fd/<fd>,
// so nothing is ever left behind when processes are killed, and the size of /dev/shm is no
// limit.
// Threads: values; one thread at a time.
// Ownership: a segment owns its mapping, and its descriptor where it made one. A mapping stays
// valid after the process that made the memory has died.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kf {

class Segment {
 public:
  Segment() = default;
  ~Segment();
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;

  // Zeros; pages take memory when they are touched. Throws Error{transport} with the reason.
  static Segment create(const char* label, std::size_t bytes);
  // All of the memory behind a descriptor of another process, which must be at least
  // `least_bytes` long. Throws Error{transport} with the reason.
  static Segment attach(int pid, int fd, std::size_t least_bytes);

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  int fd() const noexcept { return fd_; }  // -1 when attached
  bool contains(const void* begin, std::size_t bytes) const noexcept {
    const auto* first = static_cast<const std::byte*>(begin);
    return first >= data_ && bytes <= bytes_ &&
           static_cast<std::size_t>(first - data_) <= bytes_ - bytes;
  }

 private:
  void reset() noexcept;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  int fd_ = -1;
};

std::string host_identity();  // differs between machines and between boots; empty: unknown

}  // namespace kf
