#include "transport/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <utility>

#include "kf/error.h"
#include "transport/tcp/socket.h"

namespace kf {

namespace {

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorCode::transport, what + ": " + error_text(errno));
}

std::byte* map(int fd, std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) fail("cannot map " + std::to_string(bytes) + " shared bytes");
  return static_cast<std::byte*>(memory);
}

}  // namespace

Segment::~Segment() {
  reset();
}

Segment::Segment(Segment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      fd_(std::exchange(other.fd_, -1)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Segment::reset() noexcept {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  if (fd_ >= 0) ::close(fd_);
  data_ = nullptr;
  fd_ = -1;
}

Segment Segment::create(const char* label, std::size_t bytes) {
  Segment segment;
  segment.fd_ = ::memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (segment.fd_ < 0) fail("cannot create shared memory");
  if (::ftruncate(segment.fd_, static_cast<off_t>(bytes)) != 0) {
    fail("cannot size shared memory to " + std::to_string(bytes) + " bytes");
  }
  // nobody can pull the memory from under a peer that has it mapped
  ::fcntl(segment.fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  segment.data_ = map(segment.fd_, bytes);
  segment.bytes_ = bytes;
  return segment;
}

Segment Segment::attach(int pid, int fd, std::size_t least_bytes) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  const Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) fail("cannot open " + path);
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) fail("cannot read the size of " + path);
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || bytes < least_bytes) {
    throw Error(ErrorCode::transport, path + " is no shared memory of " +
                                          std::to_string(least_bytes) + " bytes or more");
  }
  // a peer that shortened it afterwards would stop this process at the next touch
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    throw Error(ErrorCode::transport, path + " is not sealed against shrinking");
  }
  Segment segment;
  segment.data_ = map(file.get(), bytes);
  segment.bytes_ = bytes;
  return segment;
}

std::string host_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string identity;
  std::getline(file, identity);
  if (identity.empty()) return identity;
  // hosts made of network namespaces are hosts: links between them are what is to be used
  std::array<char, 64> space{};
  const ssize_t length = ::readlink("/proc/self/ns/net", space.data(), space.size());
  if (length > 0) identity.append(space.data(), static_cast<std::size_t>(length));
  return identity;
}

}  // namespace kf
