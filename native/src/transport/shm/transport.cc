#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "kf/error.h"
#include "kf/host.h"
#include "transport/shm/negotiate.h"
#include "transport/tcp/mesh.h"

namespace kf {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr auto kLiveness = milliseconds(10);  // between looks at the sockets of local peers
constexpr auto kLeastSpin = microseconds(5);
constexpr auto kMostSpin = microseconds(100);  // a futex costs about ten to sleep and wake
constexpr int kLooksPerClock = 32;
constexpr int kYields = 16;
constexpr std::uint64_t kBrief = 16 * 1024;  // bytes an operation sends to one peer
// Two ranks that both sleep wake each other too late to be caught spinning briefly, so short
// spins alone would never tell that the machine has become free: now and then one spins for
// long.
constexpr int kFirstProbe = 16;  // waits until the first
constexpr int kLastProbe = 256;  // waits between them when none has paid

int usable_cores() noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

void pause_core() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class HostTransport final : public Transport {
 public:
  HostTransport(Negotiated shared, std::vector<Fd> sockets, const HostOptions& options)
      : own_(std::move(shared.own)),
        registered_(options.registered),
        link_of_(sockets.size(), nullptr) {
    for (LinkParts& parts : shared.links) {
      links_.push_back(std::make_unique<Link>(std::move(parts), registered_.get()));
      link_of_[static_cast<std::size_t>(links_.back()->peer())] = links_.back().get();
    }
    may_spin_ = static_cast<int>(links_.size()) + 1 <= usable_cores();
    const bool remote = std::any_of(sockets.begin(), sockets.end(),
                                    [](const Fd& fd) { return static_cast<bool>(fd); });
    if (!remote) return;
    tcp_ = make_tcp_transport(std::move(sockets));
    wake_ = Fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!wake_) throw Error(ErrorCode::transport, "no eventfd: " + error_text(errno));
  }

  ~HostTransport() override { close(Clock::now()); }

  const char* name() const noexcept override { return tcp_ == nullptr ? "shm" : "shm+tcp"; }

  bool send(int peer, const Frame& frame, std::span<const Region> regions,
            std::uint64_t ticket) override {
    brief_.store(frame.operation_bytes <= kBrief, std::memory_order_relaxed);
    if (Link* link = link_to(peer)) return link->send_data(frame, regions, ticket);
    return tcp_->send(peer, frame, regions, ticket);
  }

  void send_control(int peer, const Frame& frame, std::string_view text) override {
    if (Link* link = link_to(peer)) return link->send_control(frame, text);
    tcp_->send_control(peer, frame, text);
  }

  bool congested(int peer) const noexcept override {
    const Link* link = link_to(peer);
    return link != nullptr ? link->queued() : tcp_->congested(peer);
  }

  void progress(FrameSink& sink) override {
    for (const auto& link : links_) {
      const std::string failure = link->progress(sink);
      if (failure.empty()) continue;
      link->close();
      sink.lost(link->peer(), failure);
    }
    if (tcp_ != nullptr) tcp_->progress(sink);
  }

  void wait(Clock::time_point until) override;

  void wake() noexcept override {
    woken_.store(true, std::memory_order_seq_cst);
    if (!ring(*own_->bell)) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  }

  void close(Clock::time_point until) noexcept override;

 private:
  Link* link_to(int peer) const noexcept { return link_of_[static_cast<std::size_t>(peer)]; }

  bool pending() const noexcept {
    return std::any_of(links_.begin(), links_.end(),
                       [](const auto& link) { return link->pending(); });
  }
  bool take_wake() noexcept {
    return woken_.load(std::memory_order_relaxed) && woken_.exchange(false);
  }
  bool spin(Clock::time_point until) noexcept;
  bool yield() noexcept;
  bool look_at_sockets(Clock::time_point until);

  std::unique_ptr<OwnSegment> own_;
  std::shared_ptr<const SharedMemory> registered_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<Link*> link_of_;            // by rank; null: this rank, or TCP
  std::unique_ptr<PolledTransport> tcp_;  // null when all peers share memory
  Fd wake_;
  std::vector<pollfd> fds_;
  std::atomic<bool> woken_{false};
  bool may_spin_ = false;
  // what was sent last belongs to a short operation; wait() reads it without the owner's lock
  std::atomic<bool> brief_{false};
  Clock::duration spin_ = kMostSpin;  // how long waiting without sleeping seems worth while
  int probe_in_ = kFirstProbe;        // waits until the next long spin
  int probe_gap_ = kFirstProbe;
};

// Waits without giving up the core, as long as that has paid lately.
bool HostTransport::spin(Clock::time_point until) noexcept {
  const Clock::time_point start = Clock::now();
  const bool probe = --probe_in_ <= 0;
  const Clock::time_point end = std::min(until, start + (probe ? kMostSpin : spin_));
  if (probe) {
    probe_gap_ = std::min(kLastProbe, 2 * probe_gap_);
    probe_in_ = probe_gap_;
  }
  do {
    for (int i = 0; i < kLooksPerClock; ++i) {
      if (pending()) {
        spin_ = std::min<Clock::duration>(kMostSpin, spin_ + spin_ / 8);
        if (probe) probe_gap_ = probe_in_ = kFirstProbe;
        return true;
      }
      pause_core();
    }
  } while (Clock::now() < end && !woken_.load(std::memory_order_relaxed));
  spin_ = std::max<Clock::duration>(kLeastSpin, spin_ / 2);
  return false;
}

// Where ranks outnumber cores, lets those that share this one run: they are what is waited for,
// and to hand a core on costs less than to sleep and be woken. Only for short operations: in
// long ones ranks that keep coming back evict each other's blocks from the caches.
bool HostTransport::yield() noexcept {
  if (!brief_.load(std::memory_order_relaxed)) return false;
  for (int i = 0; i < kYields && !woken_.load(std::memory_order_relaxed); ++i) {
    if (pending()) return true;
    ::sched_yield();
  }
  return pending();
}

void HostTransport::wait(Clock::time_point until) {
  if (may_spin_ ? spin(until) : yield()) return;
  for (;;) {
    const Clock::time_point slice = std::min(until, Clock::now() + kLiveness);
    arm(*own_->bell, tcp_ == nullptr ? Sleep::on_bell : Sleep::on_sockets);
    bool remote = false;
    if (!pending() && !woken_.load(std::memory_order_seq_cst)) {
      if (tcp_ == nullptr) {
        sleep_on(*own_->bell, slice);
      } else {
        remote = look_at_sockets(slice);
      }
    }
    disarm(*own_->bell);
    if (take_wake() || remote || pending()) return;
    // a socket that closes, or a process that ends, rings no bell
    if (tcp_ == nullptr && Clock::now() >= slice) look_at_sockets(slice);
    if (pending() || Clock::now() >= until) return;
  }
}

// Polls the sockets of all local peers, and of the remote ones together. True: TCP has work.
bool HostTransport::look_at_sockets(Clock::time_point until) {
  fds_.clear();
  for (const auto& link : links_) {
    fds_.push_back({link->socket(), POLLIN, 0});  // poll ignores those that are closed
    fds_.push_back({link->process(), POLLIN, 0});
  }
  if (tcp_ != nullptr) {
    fds_.push_back({tcp_->poll_fd(), POLLIN, 0});
    fds_.push_back({wake_.get(), POLLIN, 0});
  }
  const auto left = std::max<std::int64_t>(
      0, std::chrono::duration_cast<std::chrono::nanoseconds>(until - Clock::now()).count());
  const timespec timeout{static_cast<std::time_t>(left / 1'000'000'000),
                         static_cast<long>(left % 1'000'000'000)};
  if (::ppoll(fds_.data(), fds_.size(), &timeout, nullptr) <= 0) return false;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (fds_[2 * i].revents != 0) {
      char bytes[64];  // what woke this rank
      const ssize_t got = ::recv(links_[i]->socket(), bytes, sizeof(bytes), MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) links_[i]->mark_gone();
    }
    if (fds_[2 * i + 1].revents != 0) links_[i]->mark_gone();
  }
  if (tcp_ == nullptr) return false;
  std::uint64_t value = 0;
  [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &value, sizeof(value));
  return fds_[fds_.size() - 2].revents != 0;
}

void HostTransport::close(Clock::time_point until) noexcept {
  for (const auto& link : links_) link->drop_data();
  const auto drained = [&] {
    bool all = true;
    for (const auto& link : links_) all = link->drain() && link->revoke() && all;
    return all;
  };
  while (!drained() && Clock::now() < until) {
    look_at_sockets(Clock::now());  // a peer that has gone takes nothing any more
    ::usleep(200);
  }
  for (const auto& link : links_) link->close();
  if (tcp_ != nullptr) tcp_->close(until);
}

}  // namespace

HostConnection connect_host(TcpListener& listener, const TcpOptions& options,
                            const HostOptions& host) {
  std::vector<Fd> sockets = connect_mesh(listener, options);
  Negotiated shared = negotiate(sockets, options, host);
  std::string warning = shared.warning;
  if (shared.links.empty()) return {make_tcp_transport(std::move(sockets)), warning};
  return {std::make_unique<HostTransport>(std::move(shared), std::move(sockets), host),
          warning};
}

std::unique_ptr<Transport> connect_tcp(TcpListener& listener, const TcpOptions& options) {
  HostOptions host;
  host.share_memory = false;
  return connect_host(listener, options, host).transport;
}

}  // namespace kf
