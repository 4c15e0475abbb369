// What a peer of this host writes into its ring: records, loans, positions.
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "fuzz.h"
#include "peer.h"
#include "transport/shm/link.h"

namespace kf::fuzz {

namespace {

constexpr std::size_t kRing = 32 * 1024;

// One link as a transport of its own.
class LinkTransport final : public Transport {
 public:
  explicit LinkTransport(LinkParts parts) : link_(std::move(parts), nullptr) {}
  const char* name() const noexcept override { return "link"; }
  bool send(int, const Frame& frame, std::span<const Region> regions,
            std::uint64_t ticket) override {
    return link_.send_data(frame, regions, ticket);
  }
  void send_control(int, const Frame& frame, std::string_view text) override {
    link_.send_control(frame, text);
  }
  bool congested(int) const noexcept override { return link_.queued(); }
  void progress(FrameSink& sink) override {
    const std::string failure = link_.progress(sink);
    if (failure.empty()) return;
    link_.close();
    sink.lost(1, failure);
  }
  void wait(Clock::time_point) override {}
  void wake() noexcept override {}
  void close(Clock::time_point) noexcept override { link_.close(); }

 private:
  Link link_;
};

struct Memory {
  RingControl in{};
  RingControl out{};
  Bell bell{};
  alignas(kLine) std::byte in_bytes[kRing] = {};
  alignas(kLine) std::byte out_bytes[kRing] = {};
};

// Loans of private memory would name any address of this very process, and results may be
// written back to it: those are left to a process that does not exist.
constexpr int kNoProcess = 0x3FFFFFFF;

}  // namespace

void rings(Bytes bytes) {
  Input input(bytes);
  const auto memory = std::make_unique<Memory>();
  int pair[2];
  promise(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0, "no sockets");
  const Fd other(pair[1]);
  const std::uint8_t which = input.byte();
  const Segment arena = Segment::create("kf-fuzz", 1 << 16);
  const bool lends = input.byte() % 2 == 0;
  LinkTransport transport({1, lends ? static_cast<int>(::getpid()) : kNoProcess, Segment(),
                           RingProducer(&memory->out, memory->out_bytes, kRing),
                           RingConsumer(&memory->in, memory->in_bytes, kRing), &memory->bell,
                           Fd(pair[0]), Fd(), false});
  Victim victim(transport, which);
  RingProducer peer(&memory->in, memory->in_bytes, kRing);
  for (int turn = 0; turn < 64 && !input.empty() && !victim.executor().death(); ++turn) {
    const std::uint8_t what = input.byte();
    const Frame frame = frame_from(input);
    Record record{};
    record.kind = static_cast<RecordKind>(what % 7);
    record.frame_kind = frame.kind;
    record.code = frame.code;
    record.transfer = frame.transfer;
    record.cell = frame.cell;
    record.scope = frame.key.scope;
    record.sequence = frame.key.sequence;
    record.fingerprint = frame.fingerprint;
    record.payload_bytes = frame.payload_bytes;
    record.bytes = static_cast<std::uint32_t>(
        (what & 8) != 0 ? std::min<std::uint64_t>(frame.payload_bytes, 1024) : input.byte());
    const std::span<std::byte> room = peer.reserve(record.bytes, true);
    if (room.data() == nullptr) break;
    if (record.kind == RecordKind::lend && lends) {
      Loan loan{static_cast<std::uint32_t>(input.byte() % 2),
                (what & 16) != 0 ? arena.fd() : -1, input.number(3), input.number(3)};
      record.bytes = static_cast<std::uint32_t>(std::min(room.size(), sizeof(loan)) /
                                                sizeof(loan) * sizeof(loan));
      if (record.bytes > 0) std::memcpy(room.data(), &loan, sizeof(loan));
    } else {
      const std::string_view text = input.text(std::min<std::size_t>(room.size(), 64));
      std::memcpy(room.data(), text.data(), text.size());
    }
    peer.publish(record);
    if ((what & 32) != 0) memory->in.head.store(input.number(8));
    if ((what & 64) != 0) memory->out.returned.store(input.number(2));
    if ((what & 128) != 0) memory->out.tail.store(input.number(8));
    for (int i = 0; i < 3; ++i) victim.executor().progress();
  }
}

}  // namespace kf::fuzz
