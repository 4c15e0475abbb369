// How the ranks of a view find each other: each connects to those below it and accepts those
// above it, all at once in one poll loop, until everyone is there or the deadline has passed.
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <list>
#include <optional>

#include "kf/error.h"
#include "kf/tcp.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/mesh.h"
#include "transport/tcp/socket.h"

namespace kf {

namespace {

using std::chrono::milliseconds;

constexpr auto kHandshakeTime = milliseconds(5000);  // at most, of an attempt
constexpr int kLeastAttempts = 4;                    // that fit into the time to open
constexpr auto kFirstRetry = milliseconds(20);
constexpr auto kLastRetry = milliseconds(500);
constexpr auto kTurn = milliseconds(10);  // longest sleep between looks at the caller
constexpr std::size_t kMaxStrangers =
    256;  // accepted and not yet authenticated; oldest go first
// Fewer than kMaxStrangers, so that a newcomer has several turns to say who it is before a
// flood pushes it out.
constexpr std::size_t kAcceptedATurn = 32;
constexpr int kMaxRefusals = 8;  // by one peer, of this rank

std::string make_nonce() {
  std::string nonce(kNonceBytes, '\0');
  std::size_t done = 0;
  while (done < nonce.size()) {
    const ssize_t got = ::getrandom(nonce.data() + done, nonce.size() - done, 0);
    if (got < 0 && errno != EINTR) {
      throw Error(ErrorCode::transport, "no random numbers: " + error_text(errno));
    }
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  return nonce;
}

// One connection on its way to be authenticated.
struct Attempt {
  Fd fd;
  Handshake handshake;
  Clock::time_point until;
  bool connecting = false;
  std::string input = {};
  std::string output = {};
  bool hung_up = false;

  short events() const {
    const bool writing = connecting || !output.empty();
    return static_cast<short>(writing ? POLLOUT : POLLIN);
  }

  // Moves the handshake on; a reason when the attempt has failed.
  std::optional<std::string> step();

 private:
  std::optional<std::string> send_output();
  std::optional<std::string> read_input();
};

std::optional<std::string> Attempt::send_output() {
  output += handshake.take_output();
  while (!output.empty()) {
    const ssize_t sent = ::send(fd.get(), output.data(), output.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EAGAIN || errno == EINTR) return std::nullopt;
      return error_text(errno);
    }
    output.erase(0, static_cast<std::size_t>(sent));
  }
  return std::nullopt;
}

std::optional<std::string> Attempt::read_input() {
  std::array<char, 256> buffer{};
  const std::size_t missing = handshake.wants() - input.size();
  const ssize_t got = ::recv(fd.get(), buffer.data(), std::min(missing, buffer.size()), 0);
  if (got == 0) {
    hung_up = true;
    return "it closed the connection during the handshake";
  }
  if (got < 0) {
    if (errno == EAGAIN || errno == EINTR) return std::nullopt;
    return error_text(errno);
  }
  input.append(buffer.data(), static_cast<std::size_t>(got));
  if (input.size() == handshake.wants()) {
    handshake.receive(input);
    input.clear();
  }
  return std::nullopt;
}

std::optional<std::string> Attempt::step() {
  if (connecting) {
    int error = 0;
    socklen_t length = sizeof(error);
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return error_text(error);
    connecting = false;
  }
  if (auto failed = send_output()) return failed;
  if (output.empty() && handshake.wants() > 0) {
    if (auto failed = read_input()) return failed;
    if (auto failed = send_output()) return failed;
  }
  if (handshake.state() == Handshake::State::refused) return handshake.reason();
  return std::nullopt;
}

class Rendezvous {
 public:
  Rendezvous(TcpListener& listener, const TcpOptions& options)
      : listener_(listener),
        options_(options),
        self_{&options.view, options.rank, options.job_id, options.job_secret},
        links_(static_cast<std::size_t>(options.view.world_size())),
        outgoing_(static_cast<std::size_t>(options.rank)),
        attempt_time_(std::min<Clock::duration>(
            kHandshakeTime, (options.deadline - Clock::now()) / kLeastAttempts)) {
    for (std::size_t p = 0; p < outgoing_.size(); ++p) {
      split_address(options.addresses[p]);  // a bad address is an error at once
    }
  }

  std::vector<Fd> run() {
    while (missing() > 0) {
      const Clock::time_point now = Clock::now();
      if (now >= options_.deadline) throw_deadline();
      if (options_.interrupt && options_.interrupt()) {
        throw Error(ErrorCode::aborted, "interrupted while connecting to the peers");
      }
      for (std::size_t p = 0; p < outgoing_.size(); ++p)
        connect_if_due(static_cast<int>(p), now);
      turn();
    }
    return std::move(links_);
  }

 private:
  struct Outgoing {
    std::optional<Attempt> attempt;
    Clock::time_point next_try{};
    milliseconds pause = kFirstRetry;
    int refusals = 0;
    std::string reason = "it was not reached";
  };

  std::size_t missing() const {
    std::size_t count = 0;
    for (std::size_t p = 0; p < links_.size(); ++p) {
      count += static_cast<int>(p) != options_.rank && !links_[p] ? 1 : 0;
    }
    return count;
  }

  void connect_if_due(int peer, Clock::time_point now);
  void turn();
  void accept_all();
  void on_outgoing(int peer, const std::optional<std::string>& failure);
  void retry_later(Outgoing& out, std::string reason);
  void refused(int peer, Outgoing& out, const std::string& reason);
  [[noreturn]] void throw_deadline() const;

  TcpListener& listener_;
  const TcpOptions& options_;
  Identity self_;
  std::vector<Fd> links_;           // by rank, authenticated
  std::vector<Outgoing> outgoing_;  // by rank, those below this one
  Clock::duration attempt_time_;    // from connect or accept until both have proved themselves
  std::list<Attempt> strangers_;    // accepted, oldest first
  int strangers_refused_ = 0;
  std::string last_stranger_;
};

void Rendezvous::retry_later(Outgoing& out, std::string reason) {
  out.attempt.reset();
  out.reason = std::move(reason);
  out.next_try = Clock::now() + out.pause;
  out.pause = std::min(out.pause * 2, milliseconds(kLastRetry));
}

void Rendezvous::connect_if_due(int peer, Clock::time_point now) {
  Outgoing& out = outgoing_[static_cast<std::size_t>(peer)];
  if (links_[static_cast<std::size_t>(peer)] || out.attempt || now < out.next_try) return;
  try {
    const auto [host, port] = split_address(options_.addresses[static_cast<std::size_t>(peer)]);
    for (const SocketAddress& address : resolve(host, port, false)) {
      Fd fd = open_socket(address.family);
      if (!fd) return retry_later(out, error_text(errno));
      const auto* to = reinterpret_cast<const sockaddr*>(&address.storage);
      if (::connect(fd.get(), to, address.length) != 0 && errno != EINPROGRESS) {
        out.reason = error_text(errno);
        continue;
      }
      out.attempt.emplace(Attempt{std::move(fd),
                                  Handshake(Handshake::Role::client, self_, make_nonce(), peer),
                                  now + attempt_time_, true});
      return;
    }
    retry_later(out, out.reason);
  } catch (const Error& error) {
    retry_later(out, error.what());  // a name that does not resolve yet
  }
}

// Sleeps until a socket has news, then moves everything that can move.
void Rendezvous::turn() {
  std::vector<pollfd> fds = {{listener_.fd(), POLLIN, 0}};
  for (const Attempt& a : strangers_) fds.push_back({a.fd.get(), a.events(), 0});
  for (const Outgoing& out : outgoing_) {
    if (out.attempt) fds.push_back({out.attempt->fd.get(), out.attempt->events(), 0});
  }
  ::poll(fds.data(), fds.size(), static_cast<int>(kTurn.count()));
  std::size_t at = 1;
  const Clock::time_point now = Clock::now();
  for (auto a = strangers_.begin(); a != strangers_.end();) {
    const bool news = fds[at++].revents != 0;
    const std::optional<std::string> failure =
        news ? a->step()
             : (now > a->until ? std::optional<std::string>("it was silent") : std::nullopt);
    const bool accepted =
        !failure && a->output.empty() && a->handshake.state() == Handshake::State::accepted;
    if (accepted) {
      Fd& link = links_[static_cast<std::size_t>(a->handshake.peer())];
      // a second connection of one rank: the first attempt may have timed out on its side
      link = std::move(a->fd);
      set_no_delay(link.get());
    } else if (failure) {
      ++strangers_refused_;
      last_stranger_ = *failure;
    }
    a = accepted || failure ? strangers_.erase(a) : std::next(a);
  }
  for (std::size_t p = 0; p < outgoing_.size(); ++p) {
    Outgoing& out = outgoing_[p];
    if (!out.attempt) continue;
    if (fds[at++].revents != 0) {
      on_outgoing(static_cast<int>(p), out.attempt->step());
    } else if (now > out.attempt->until) {
      retry_later(out, "no answer to the handshake");
    }
  }
  if (fds[0].revents != 0) accept_all();
}

void Rendezvous::accept_all() {
  for (std::size_t i = 0; i < kAcceptedATurn; ++i) {
    Fd fd(::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) return;
    if (strangers_.size() >= kMaxStrangers) strangers_.pop_front();
    strangers_.push_back(Attempt{std::move(fd),
                                 Handshake(Handshake::Role::server, self_, make_nonce()),
                                 Clock::now() + attempt_time_, false});
  }
}

void Rendezvous::on_outgoing(int peer, const std::optional<std::string>& failure) {
  Outgoing& out = outgoing_[static_cast<std::size_t>(peer)];
  if (failure) return refused(peer, out, *failure);
  if (out.attempt->handshake.state() != Handshake::State::accepted) return;
  Fd& link = links_[static_cast<std::size_t>(peer)];
  link = std::move(out.attempt->fd);
  set_no_delay(link.get());
  out.attempt.reset();
}

void Rendezvous::refused(int peer, Outgoing& out, const std::string& reason) {
  const std::int64_t theirs = out.attempt->handshake.server_view_version();
  if (theirs > options_.view.version) {
    throw Error(ErrorCode::stale_view, "rank " + std::to_string(peer) + " is in view " +
                                           std::to_string(theirs) + ", this worker in view " +
                                           std::to_string(options_.view.version));
  }
  // the peer saw our proof and hung up, or gave a reason: our claim is at fault. A peer that
  // hangs up earlier has too many strangers at its door.
  const Attempt& attempt = *out.attempt;
  const bool judged = attempt.handshake.state() == Handshake::State::refused ||
                      (attempt.hung_up && attempt.handshake.proved());
  if (judged && theirs == 0 && ++out.refusals >= kMaxRefusals) {
    throw Error(ErrorCode::transport,
                "rank " + std::to_string(peer) + " refused this worker " +
                    std::to_string(out.refusals) + " times: " + reason +
                    " (job secret, job id and protocol version must be the same on both)");
  }
  retry_later(out, reason);
}

void Rendezvous::throw_deadline() const {
  std::string text;
  for (std::size_t p = 0; p < links_.size(); ++p) {
    if (static_cast<int>(p) == options_.rank || links_[p]) continue;
    text += (text.empty() ? "" : "; ") + std::string("rank ") + std::to_string(p);
    if (p < outgoing_.size()) {
      text += " at " + options_.addresses[p] + " (" + outgoing_[p].reason + ")";
    } else {
      text += " has not connected to " + listener_.address();
    }
  }
  if (strangers_refused_ > 0) {
    text += "; " + std::to_string(strangers_refused_) +
            " incoming connections failed the handshake, the last because " + last_stranger_;
  }
  throw Error(ErrorCode::deadline, "not all peers are connected before the deadline: " + text);
}

}  // namespace

std::vector<Fd> connect_mesh(TcpListener& listener, const TcpOptions& options) {
  const int world_size = options.view.world_size();
  if (options.rank < 0 || options.rank >= world_size) {
    throw Error(ErrorCode::usage, "rank must be in [0, " + std::to_string(world_size) +
                                      "), got " + std::to_string(options.rank));
  }
  if (options.addresses.size() != static_cast<std::size_t>(world_size)) {
    throw Error(ErrorCode::usage, "one address for each of " + std::to_string(world_size) +
                                      " ranks, got " +
                                      std::to_string(options.addresses.size()));
  }
  if (listener.fd() < 0) throw Error(ErrorCode::usage, "the listener is closed");
  std::vector<Fd> links = Rendezvous(listener, options).run();
  if (!options.keep_listener) listener.close();
  return links;
}

}  // namespace kf
