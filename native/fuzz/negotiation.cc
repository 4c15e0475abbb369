// Offers to share memory, and verdicts, of a peer that says anything.
#include "transport/shm/negotiate.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "fuzz.h"
#include "kf/error.h"
#include "transport/sha256.h"
#include "transport/wire.h"

namespace kf::fuzz {

namespace {

constexpr std::uint64_t kOfferMark = 0x314F534BULL;

}  // namespace

void negotiation(Bytes bytes) {
  Input input(bytes);
  int pair[2];
  promise(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0, "no sockets");
  const Fd other(pair[1]);
  std::vector<Fd> sockets(2);
  sockets[1] = Fd(pair[0]);
  const Segment segment = Segment::create("kf-fuzz", std::size_t{1} << (12 + input.byte() % 9));
  const std::uint8_t plausible = input.byte();
  std::string offer;
  append_number(offer, (plausible & 1) != 0 ? kOfferMark : input.number(4), 4);
  append_number(offer, input.byte() % 4 != 0 ? 1 : 0, 4);
  // only this process: opening descriptors of strangers could disturb them
  append_number(offer, (plausible & 2) != 0 ? static_cast<std::uint64_t>(::getpid()) : ~0ULL,
                8);
  append_number(offer, (plausible & 4) != 0 ? static_cast<std::uint64_t>(segment.fd()) : ~0ULL,
                8);
  append_number(offer, (plausible & 8) != 0 ? std::uint64_t{256} << 10 : input.number(8), 8);
  append_number(offer, input.number(8), 8);
  append_number(offer, input.number(8), 8);
  offer.append(16, 't');
  std::memset(segment.data(), (plausible & 16) != 0 ? 't' : 'u', 16);
  offer +=
      std::string(bytes_of(sha256((plausible & 32) != 0 ? "host" : "other"))).substr(0, 16);
  offer.push_back(static_cast<char>(input.byte()));
  const std::size_t cut = (plausible & 64) != 0 ? offer.size() : input.byte();
  [[maybe_unused]] const ssize_t sent =
      ::send(other.get(), offer.data(), std::min(cut, offer.size()), MSG_NOSIGNAL);
  if (cut < offer.size()) ::shutdown(other.get(), SHUT_WR);
  TcpOptions options;
  options.view = View{1, {"a", "b"}};
  options.deadline = Clock::now() + std::chrono::seconds(60);
  HostOptions host;
  host.identity = "host";
  try {
    Negotiated result = negotiate(sockets, options, host);
    for (LinkParts& parts : result.links) {
      // what was agreed on can be used: a small record goes into the peer's ring
      const std::span<std::byte> room = parts.out.reserve(64, true);
      if (room.data() != nullptr) std::memset(room.data(), 1, room.size());
      Record record{};
      record.kind = RecordKind::frame;
      record.bytes = static_cast<std::uint32_t>(room.size());
      if (room.data() != nullptr) parts.out.publish(record);
      parts.in.peek();
    }
  } catch (const Error& error) {
    promise(error.code() == ErrorCode::transport || error.code() == ErrorCode::peer_lost,
            error.what());
  }
}

}  // namespace kf::fuzz
