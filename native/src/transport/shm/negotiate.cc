#include "transport/shm/negotiate.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "kf/error.h"
#include "transport/sha256.h"
#include "transport/wire.h"

namespace kf {

namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kMark = 0x314F534BULL;  // "KSO1"
constexpr std::size_t kTokenBytes = 16;
constexpr std::size_t kHostBytes = 16;
constexpr std::size_t kOfferBytes = 4 + 4 + 8 * 5 + kTokenBytes + kHostBytes;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kMaxRing = 1024 * 1024;  // slack for a peer that is not running
constexpr std::size_t kMinRing = 32 * 1024;
constexpr std::size_t kEnoughRing = 256 * 1024;
constexpr std::size_t kRingsOfRank = 4 * 1024 * 1024;  // what all rings of a rank may take

// The start of a rank's segment.
struct SegmentHead {
  char token[kTokenBytes];
  alignas(kLine) Bell bell;
};

struct Offer {
  bool share = false;
  int pid = 0;
  int fd = -1;
  std::uint64_t ring_bytes = 0;
  std::uint64_t probe = 0;        // address in the sender's private memory ...
  std::uint64_t probe_value = 0;  // ... and the word that stands there
  std::string token;
  std::string host;
};

std::string encode(const Offer& offer) {
  std::string text;
  append_number(text, kMark, 4);
  append_number(text, offer.share ? 1 : 0, 4);
  append_number(text, static_cast<std::uint64_t>(offer.pid), 8);
  append_number(text, static_cast<std::uint64_t>(static_cast<std::int64_t>(offer.fd)), 8);
  append_number(text, offer.ring_bytes, 8);
  append_number(text, offer.probe, 8);
  append_number(text, offer.probe_value, 8);
  return text + offer.token + offer.host;
}

Offer decode(std::string_view text, int peer) {
  if (read_number(text, 0, 4) != kMark) {
    throw Error(ErrorCode::transport, "rank " + std::to_string(peer) +
                                          " broke the protocol: no offer to share memory");
  }
  Offer offer;
  offer.share = read_number(text, 4, 4) == 1;
  offer.pid = static_cast<int>(read_number(text, 8, 8));
  offer.fd = static_cast<int>(static_cast<std::int64_t>(read_number(text, 16, 8)));
  offer.ring_bytes = read_number(text, 24, 8);
  offer.probe = read_number(text, 32, 8);
  offer.probe_value = read_number(text, 40, 8);
  offer.token = text.substr(48, kTokenBytes);
  offer.host = text.substr(48 + kTokenBytes, kHostBytes);
  return offer;
}

// Few ranks have long rings; many would only push each other's out of the caches with them.
std::size_t ring_bytes_for(int world_size) {
  const auto peers = static_cast<std::size_t>(std::max(world_size - 1, 1));
  const std::size_t fair = std::bit_floor(kRingsOfRank / peers);
  const std::size_t generous = std::bit_floor(kRingsOfRank / 2 / peers);
  return std::clamp(std::max(generous, std::min(fair, kEnoughRing)), kMinRing, kMaxRing);
}

std::size_t controls_at() {
  return kPage;
}

std::size_t rings_at(int world_size) {
  const std::size_t end =
      controls_at() + static_cast<std::size_t>(world_size) * sizeof(RingControl);
  return (end + kPage - 1) / kPage * kPage;
}

std::size_t segment_bytes(int world_size, std::size_t ring_bytes) {
  return rings_at(world_size) + static_cast<std::size_t>(world_size) * ring_bytes;
}

SegmentHead* head_of(const Segment& segment) {
  return reinterpret_cast<SegmentHead*>(segment.data());
}

RingControl* control_of(const Segment& segment, int sender) {
  return reinterpret_cast<RingControl*>(segment.data() + controls_at()) + sender;
}

std::byte* ring_of(const Segment& segment, int world_size, std::size_t ring_bytes, int sender) {
  return segment.data() + rings_at(world_size) + static_cast<std::size_t>(sender) * ring_bytes;
}

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  std::size_t done = 0;
  while (done < count) {
    const ssize_t got = ::getrandom(bytes.data() + done, count - done, 0);
    if (got < 0 && errno != EINTR) {
      throw Error(ErrorCode::transport, "no random numbers: " + error_text(errno));
    }
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  return bytes;
}

// Sends and reads a few bytes over non-blocking sockets before the deadline.
class Exchange {
 public:
  Exchange(const std::vector<Fd>& sockets, const TcpOptions& options)
      : sockets_(sockets), options_(options) {}

  void send(int peer, std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = ::send(fd(peer), text.data(), text.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        text.remove_prefix(static_cast<std::size_t>(sent));
      } else {
        block(peer, sent, POLLOUT);
      }
    }
  }

  std::string read(int peer, std::size_t count) {
    std::string text(count, '\0');
    std::size_t done = 0;
    while (done < count) {
      const ssize_t got = ::recv(fd(peer), text.data() + done, count - done, 0);
      if (got > 0) {
        done += static_cast<std::size_t>(got);
      } else {
        block(peer, got, POLLIN);
      }
    }
    return text;
  }

 private:
  int fd(int peer) const { return sockets_[static_cast<std::size_t>(peer)].get(); }

  void block(int peer, ssize_t result, short events) {
    const std::string who = "rank " + std::to_string(peer);
    if (result == 0 || (errno != EAGAIN && errno != EINTR)) {
      throw Error(ErrorCode::peer_lost,
                  who + " was lost while sharing memory was negotiated: " +
                      (result == 0 ? "it closed the connection" : error_text(errno)));
    }
    if (Clock::now() >= options_.deadline) {
      throw Error(ErrorCode::deadline, "not all peers are connected before the deadline: " +
                                           who + " is connected but silent");
    }
    if (options_.interrupt && options_.interrupt()) {
      throw Error(ErrorCode::aborted, "interrupted while connecting to the peers");
    }
    pollfd waiting{fd(peer), events, 0};
    ::poll(&waiting, 1, static_cast<int>(milliseconds(10).count()));
  }

  const std::vector<Fd>& sockets_;
  const TcpOptions& options_;
};

class Negotiation {
 public:
  Negotiation(std::vector<Fd>& sockets, const TcpOptions& options, const HostOptions& host)
      : sockets_(sockets),
        options_(options),
        host_(host),
        world_size_(options.view.world_size()),
        exchange_(sockets, options) {}

  Negotiated run();

 private:
  Offer make_offer();
  void try_peer(int peer, const Offer& theirs);
  LinkParts parts_for(int peer, const Offer& theirs, Segment segment);
  void warn(const std::string& why) {
    if (result_.warning.empty()) result_.warning = why;
  }

  std::vector<Fd>& sockets_;
  const TcpOptions& options_;
  const HostOptions& host_;
  int world_size_;
  Exchange exchange_;
  Offer mine_;
  Negotiated result_;
  std::vector<LinkParts> mapped_;
};

Offer Negotiation::make_offer() {
  Offer offer;
  offer.token.assign(kTokenBytes, '\0');
  offer.host.assign(kHostBytes, '\0');
  const std::string host = host_.identity.empty() ? host_identity() : host_.identity;
  if (!host_.share_memory || host.empty()) return offer;
  try {
    offer.ring_bytes = ring_bytes_for(world_size_);
    result_.own = std::make_unique<OwnSegment>();
    result_.own->segment =
        Segment::create("kf-rings", segment_bytes(world_size_, offer.ring_bytes));
  } catch (const Error& error) {
    warn(error.what());
    result_.own.reset();
    return offer;
  }
  const auto digest = sha256(host);
  offer.host.assign(reinterpret_cast<const char*>(digest.data()), kHostBytes);
  offer.token = random_bytes(kTokenBytes);
  SegmentHead* head = head_of(result_.own->segment);
  std::memcpy(head->token, offer.token.data(), kTokenBytes);
  result_.own->bell = &head->bell;
  offer.share = true;
  offer.pid = static_cast<int>(::getpid());
  offer.fd = result_.own->segment.fd();
  std::memcpy(&offer.probe_value, offer.token.data(), sizeof(offer.probe_value));
  return offer;
}

LinkParts Negotiation::parts_for(int peer, const Offer& theirs, Segment segment) {
  const int rank = options_.rank;
  const auto bytes = static_cast<std::size_t>(theirs.ring_bytes);
  RingProducer out(control_of(segment, rank), ring_of(segment, world_size_, bytes, rank),
                   bytes);
  const Segment& own = result_.own->segment;
  const auto own_bytes = static_cast<std::size_t>(mine_.ring_bytes);
  RingConsumer in(control_of(own, peer), ring_of(own, world_size_, own_bytes, peer), own_bytes);
  Bell* bell = &head_of(segment)->bell;
  return {peer, theirs.pid, std::move(segment), out, in, bell, {}, {}, false};
}

void Negotiation::try_peer(int peer, const Offer& theirs) {
  if (!mine_.share || !theirs.share || theirs.host != mine_.host) return;
  try {
    // both follow from the number of ranks; positions in a ring of another size make no sense
    if (theirs.ring_bytes != mine_.ring_bytes) {
      throw Error(ErrorCode::transport, "its rings have " + std::to_string(theirs.ring_bytes) +
                                            " bytes, those of this rank " +
                                            std::to_string(mine_.ring_bytes));
    }
    // opened first: if the token below is right, this was its process all the time
    Fd process(static_cast<int>(::syscall(SYS_pidfd_open, theirs.pid, 0)));
    Segment segment =
        Segment::attach(theirs.pid, theirs.fd,
                        segment_bytes(world_size_, static_cast<std::size_t>(mine_.ring_bytes)));
    if (std::memcmp(head_of(segment)->token, theirs.token.data(), kTokenBytes) != 0) {
      throw Error(ErrorCode::transport,
                  "another process has its number: not one pid namespace");
    }
    LinkParts parts = parts_for(peer, theirs, std::move(segment));
    parts.process = std::move(process);
    mapped_.push_back(std::move(parts));
  } catch (const Error& error) {
    warn("memory is not shared with rank " + std::to_string(peer) + ": " + error.what());
  }
}

// Verdict: bit 0, the segment is mapped; bit 1, this process can read the other's private
// memory.
Negotiated Negotiation::run() {
  mine_ = make_offer();
  const volatile std::uint64_t probe = mine_.probe_value;  // peers try to read this very word
  mine_.probe = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&probe));
  const auto each_peer = [&](auto&& fn) {
    for (int peer = 0; peer < world_size_; ++peer) {
      if (peer != options_.rank) fn(peer);
    }
  };
  each_peer([&](int peer) { exchange_.send(peer, encode(mine_)); });
  std::vector<char> verdicts(static_cast<std::size_t>(world_size_), 0);
  each_peer([&](int peer) {
    const Offer theirs = decode(exchange_.read(peer, kOfferBytes), peer);
    try_peer(peer, theirs);
    if (mapped_.empty() || mapped_.back().peer != peer) return;
    const bool reads =
        host_.attach && Borrower::may_attach(theirs.pid, theirs.probe, theirs.probe_value);
    verdicts[static_cast<std::size_t>(peer)] = static_cast<char>(reads ? 3 : 1);
  });
  each_peer(
      [&](int peer) { exchange_.send(peer, {&verdicts[static_cast<std::size_t>(peer)], 1}); });
  std::size_t at = 0;
  each_peer([&](int peer) {
    const int verdict = exchange_.read(peer, 1)[0];
    if (at == mapped_.size() || mapped_[at].peer != peer) return;
    LinkParts& parts = mapped_[at++];
    if ((verdict & 1) == 0) return;
    parts.peer_reads_private = host_.attach && (verdict & 2) != 0;
    parts.socket = std::move(sockets_[static_cast<std::size_t>(peer)]);
    result_.links.push_back(std::move(parts));
  });
  if (result_.links.empty()) result_.own.reset();
  return std::move(result_);
}

}  // namespace

Negotiated negotiate(std::vector<Fd>& sockets, const TcpOptions& options,
                     const HostOptions& host) {
  return Negotiation(sockets, options, host).run();
}

}  // namespace kf
