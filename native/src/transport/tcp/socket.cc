#include "transport/tcp/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "kf/error.h"
#include "kf/tcp.h"

namespace kf {

namespace {

constexpr int kBacklog = 1024;

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int Fd::release() noexcept {
  return std::exchange(fd_, -1);
}

void Fd::reset() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::string error_text(int error) {
  return std::generic_category().message(error);
}

std::pair<std::string, int> split_address(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  int port = -1;
  if (colon != std::string::npos) {
    const char* end = address.data() + address.size();
    const auto parsed = std::from_chars(address.data() + colon + 1, end, port);
    if (parsed.ec != std::errc() || parsed.ptr != end) port = -1;
  }
  if (port < 0 || port > 65535 || colon == 0) {
    throw Error(ErrorCode::usage,
                "an address is host:port or [ipv6]:port, got \"" + address + "\"");
  }
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return {host, port};
}

std::vector<SocketAddress> resolve(const std::string& host, int port, bool to_listen) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                 std::to_string(port).c_str(), &hints, &found);
  if (status != 0) {
    throw Error(ErrorCode::transport,
                "cannot resolve host \"" + host + "\": " + gai_strerror(status));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, info->ai_addr, info->ai_addrlen);
    address.length = info->ai_addrlen;
    address.family = info->ai_family;
    addresses.push_back(address);
  }
  return addresses;
}

std::string to_string(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.family == AF_INET6) {
    const auto* in6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    inet_ntop(AF_INET6, &in6->sin6_addr, text.data(), text.size());
    std::string bracketed("[");
    return bracketed.append(text.data())
        .append("]:")
        .append(std::to_string(ntohs(in6->sin6_port)));
  }
  const auto* in = reinterpret_cast<const sockaddr_in*>(&address.storage);
  inet_ntop(AF_INET, &in->sin_addr, text.data(), text.size());
  return std::string(text.data()) + ":" + std::to_string(ntohs(in->sin_port));
}

Fd open_socket(int family) noexcept {
  return Fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

void set_no_delay(int fd) noexcept {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

TcpListener::TcpListener(const std::string& host, int port) {
  if (port < 0 || port > 65535) {
    throw Error(ErrorCode::usage, "port must be in [0, 65535], got " + std::to_string(port));
  }
  std::string reason = "no address";
  for (const SocketAddress& address : resolve(host, port, true)) {
    Fd fd = open_socket(address.family);
    const int on = 1;
    if (fd) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (!fd ||
        ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) !=
            0 ||
        ::listen(fd.get(), kBacklog) != 0) {
      reason = error_text(errno);
      continue;
    }
    SocketAddress bound;
    bound.family = address.family;
    bound.length = sizeof(bound.storage);
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length);
    address_ = to_string(bound);
    port_ = split_address(address_).second;
    fd_ = fd.release();
    return;
  }
  throw Error(ErrorCode::transport,
              "cannot listen on " + host + " port " + std::to_string(port) + ": " + reason);
}

TcpListener::~TcpListener() {
  close();
}

TcpListener::TcpListener(TcpListener&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      port_(other.port_),
      address_(std::move(other.address_)) {}

void TcpListener::close() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

}  // namespace kf
