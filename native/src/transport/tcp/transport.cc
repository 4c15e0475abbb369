#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include "kf/error.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/mesh.h"

namespace kf {

namespace {

constexpr std::uint64_t kWakeTag = ~std::uint64_t{0};
constexpr int kEvents = 64;
constexpr useconds_t kAcknowledgeUs = 50;  // between looks at the send queues when closing

int milliseconds_until(Clock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

class TcpTransport final : public PolledTransport {
 public:
  explicit TcpTransport(std::vector<Fd> sockets)
      : epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!epoll_ || !wake_) {
      throw Error(ErrorCode::transport, "cannot create epoll: " + error_text(errno));
    }
    watch(wake_.get(), EPOLL_CTL_ADD, EPOLLIN, kWakeTag);
    for (std::size_t p = 0; p < sockets.size(); ++p) {
      const bool present = static_cast<bool>(sockets[p]);
      peers_.emplace_back(Connection(std::move(sockets[p]), static_cast<int>(p)));
      if (present) watch(peers_[p].link.fd(), EPOLL_CTL_ADD, EPOLLIN, p);
    }
  }

  ~TcpTransport() override { close(Clock::now()); }

  const char* name() const noexcept override { return "tcp"; }
  int poll_fd() const noexcept override { return epoll_.get(); }

  bool send(int peer, const Frame& frame, std::span<const Region> regions,
            std::uint64_t ticket) override {
    Peer& to = at(peer);
    if (!to.link.open()) return true;  // lost() has been, or is about to be, reported
    if (to.link.send_data(frame, regions, ticket)) return true;
    want_output(to);
    return false;
  }

  void send_control(int peer, const Frame& frame, std::string_view text) override {
    Peer& to = at(peer);
    if (!to.link.open()) return;
    to.link.send_control(frame, text);
    want_output(to);
  }

  bool congested(int peer) const noexcept override {
    return peers_[static_cast<std::size_t>(peer)].link.queued();
  }

  void progress(FrameSink& sink) override {
    if (count_ == 0) poll(0);
    for (int i = 0; i < count_; ++i) handle(events_[static_cast<std::size_t>(i)], sink);
    count_ = 0;
  }

  void wait(Clock::time_point until) override { poll(milliseconds_until(until)); }

  void wake() noexcept override {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  }

  void close(Clock::time_point until) noexcept override {
    for (Peer& peer : peers_) peer.link.drop_data();
    while (flush_all() && Clock::now() < until) {
    }
    // A socket that is closed with something unread is reset, and what the peer's system has
    // not acknowledged by then, the goodbye for one, is lost.
    while (!all_acknowledged() && Clock::now() < until) ::usleep(kAcknowledgeUs);
    for (Peer& peer : peers_) peer.link.close();
  }

 private:
  struct Peer {
    explicit Peer(Connection connection) : link(std::move(connection)) {}
    Connection link;
    bool output_watched = false;
  };

  Peer& at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }

  void watch(int fd, int action, std::uint32_t events, std::uint64_t tag) noexcept {
    epoll_event event{};
    event.events = events;
    event.data.u64 = tag;
    ::epoll_ctl(epoll_.get(), action, fd, &event);
  }

  // Asks to be told when there is room, while and only while something waits for it.
  void want_output(Peer& peer) noexcept {
    if (!peer.link.open() || peer.link.queued() == peer.output_watched) return;
    peer.output_watched = peer.link.queued();
    watch(peer.link.fd(), EPOLL_CTL_MOD, EPOLLIN | (peer.output_watched ? EPOLLOUT : 0U),
          static_cast<std::uint64_t>(peer.link.peer()));
  }

  void poll(int timeout_ms) {
    const int ready = ::epoll_wait(epoll_.get(), events_.data(), kEvents, timeout_ms);
    count_ = std::max(ready, 0);
  }

  void handle(const epoll_event& event, FrameSink& sink) {
    if (event.data.u64 == kWakeTag) {
      std::uint64_t value = 0;
      [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &value, sizeof(value));
      return;
    }
    Peer& peer = peers_[static_cast<std::size_t>(event.data.u64)];
    if (!peer.link.open()) return;
    // what has arrived is read before a failure is believed: a peer that said goodbye or why it
    // died closes right afterwards, and that may happen between reading and writing
    std::string failure = peer.link.receive(sink);
    if (failure.empty() && (event.events & EPOLLOUT) != 0U) {
      const std::string unsent = peer.link.flush(sink);
      if (!unsent.empty()) failure = last_words(peer.link, sink, unsent);
    }
    if (!failure.empty()) {
      peer.link.close();  // leaves the epoll set with its descriptor
      sink.lost(peer.link.peer(), failure);
      return;
    }
    want_output(peer);
  }

  // Reads what is left on a connection that cannot be written to; why it failed.
  std::string last_words(Connection& link, FrameSink& sink, const std::string& unsent) {
    std::uint64_t before = 0;
    do {
      before = link.bytes_received();
      const std::string failure = link.receive(sink);
      if (!failure.empty()) return failure;
    } while (link.bytes_received() != before);
    return unsent;
  }

  bool all_acknowledged() const noexcept {
    return std::all_of(peers_.begin(), peers_.end(),
                       [](const Peer& peer) { return peer.link.acknowledged(); });
  }

  // One round over all queues; true while something is left. Blocks for a short while at most.
  bool flush_all() noexcept {
    std::vector<pollfd> waiting;
    for (Peer& peer : peers_) {
      if (peer.link.open() && !peer.link.drain()) {
        waiting.push_back({peer.link.fd(), POLLOUT, 0});
      }
    }
    if (waiting.empty()) return false;
    ::poll(waiting.data(), waiting.size(), 10);
    return true;
  }

  Fd epoll_;
  Fd wake_;
  std::vector<Peer> peers_;  // by rank
  std::array<epoll_event, kEvents> events_{};
  int count_ = 0;  // events not handled yet
};

}  // namespace

std::unique_ptr<PolledTransport> make_tcp_transport(std::vector<Fd> sockets) {
  return std::make_unique<TcpTransport>(std::move(sockets));
}

}  // namespace kf
