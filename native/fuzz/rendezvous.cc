// Strangers at the door of a rank that waits for its peer, and a server that is none.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "fuzz.h"
#include "kf/error.h"
#include "transport/tcp/mesh.h"

namespace kf::fuzz {

namespace {

TcpOptions options_of(int rank, std::vector<std::string> addresses) {
  TcpOptions options;
  options.view = View{1, {"a", "b"}};
  options.rank = rank;
  options.job_id = "job";
  options.job_secret = "secret";
  options.addresses = std::move(addresses);
  options.deadline = Clock::now() + std::chrono::seconds(60);
  return options;
}

Fd connect_to(const std::string& address) {
  const auto [host, port] = split_address(address);
  const SocketAddress to = resolve(host, port, false).front();
  Fd fd(::socket(to.family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  promise(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.length) == 0,
          "no connection to the listener");
  return fd;
}

void put(const Fd& fd, std::string_view text) {
  [[maybe_unused]] const ssize_t sent =
      ::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Whatever strangers say first, the two members find each other.
void strangers(Input input) {
  TcpListener door("127.0.0.1", 0);
  TcpListener unused("127.0.0.1", 0);
  const std::vector<std::string> addresses = {door.address(), unused.address()};
  std::vector<Fd> callers;
  for (int n = input.byte() % 4; n >= 0; --n) {
    callers.push_back(connect_to(addresses[0]));
    put(callers.back(), input.text(input.byte()));
    if (input.byte() % 2 == 0) ::shutdown(callers.back().get(), SHUT_WR);
  }
  std::vector<Fd> theirs;
  std::thread member([&] { theirs = connect_mesh(unused, options_of(1, addresses)); });
  const std::vector<Fd> mine = connect_mesh(door, options_of(0, addresses));
  member.join();
  put(mine[1], "x");
  pollfd waiting{theirs[0].get(), POLLIN, 0};
  ::poll(&waiting, 1, 60'000);
  char got = 0;
  promise(::recv(theirs[0].get(), &got, 1, 0) == 1 && got == 'x', "connected to a stranger");
}

// A server without the secret is never believed.
void false_server(Input input) {
  TcpListener door("127.0.0.1", 0);
  TcpListener own("127.0.0.1", 0);
  TcpOptions options = options_of(1, {door.address(), own.address()});
  std::atomic<bool> over{false};
  options.interrupt = [&] { return over.load(); };
  std::thread server([&] {
    pollfd waiting{door.fd(), POLLIN, 0};
    ::poll(&waiting, 1, 60'000);
    const Fd caller(::accept4(door.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    put(caller, input.rest());
    ::shutdown(caller.get(), SHUT_WR);
    char drained[256];
    while (::recv(caller.get(), drained, sizeof(drained), 0) > 0) {
    }
    over.store(true);
  });
  try {
    connect_mesh(own, options);
    broken("a server without the secret was believed");
  } catch (const Error& error) {
    promise(error.code() == ErrorCode::aborted || error.code() == ErrorCode::transport,
            error.what());
  }
  server.join();
}

}  // namespace

void rendezvous(Bytes bytes) {
  Input input(bytes);
  return input.byte() % 2 == 0 ? strangers(input) : false_server(input);
}

}  // namespace kf::fuzz
