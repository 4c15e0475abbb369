// Sockets as values: who owns a descriptor, and the few system calls made with it.
#pragma once

#include <string>
#include <vector>

#include <sys/socket.h>

namespace kf {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  ~Fd() { reset(); }
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;
  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept;
  void reset() noexcept;

 private:
  int fd_ = -1;
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  int family = 0;
};

// Splits "host:port" and "[ipv6]:port". Throws Error{usage} showing the text.
std::pair<std::string, int> split_address(const std::string& address);
// All addresses of a host. Throws Error{transport} with the resolver's reason.
std::vector<SocketAddress> resolve(const std::string& host, int port, bool to_listen);
std::string to_string(const SocketAddress& address);

// Non-blocking, closed on exec. An empty Fd with errno set when the system refuses.
Fd open_socket(int family) noexcept;
void set_no_delay(int fd) noexcept;
std::string error_text(int error);

}  // namespace kf
