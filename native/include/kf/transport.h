// Moves frames between the ranks of one view. Knows nothing of schedules, types or operators.
//
// Terms: frame: a header and its payload; data frame: carries elements of one message of an
//        operation; control frame: start, abort or bye, with a short text as payload;
//        region: a run of bytes in memory; ticket: the sender's own number for a data frame.
// Threads: every call except wait() and wake() is made under one lock, the owner's (Session).
//        wait() may block and is called without that lock, by one thread at a time;
//        wake() may be called by any thread.
// Ownership: regions given to send() stay valid until FrameSink::sent() or until close()
// returns.
//
// Frames between two ranks arrive in the order they were sent. A transport delivers a payload
// either into regions that the sink names (no copy of its own) or as spans that are valid
// during one call of FrameSink::consume, so a reduction can read memory that belongs to the
// transport, or to the peer, once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kf {

using Clock = std::chrono::steady_clock;
using Region = std::span<std::byte>;

// Which operation a frame belongs to. Unnamed operations have scope 0 and count up together;
// a named one has a scope derived from its name and counts the uses of that name.
struct OpKey {
  std::uint64_t scope = 0;
  std::uint64_t sequence = 0;
  bool operator==(const OpKey&) const = default;
  auto operator<=>(const OpKey&) const = default;
};

enum class FrameKind : std::uint8_t {
  data = 1,   // elements of one message
  start = 2,  // the sender has started this operation; the payload is its fingerprint in words
  abort = 3,  // the sender's session died; the payload says why
  bye = 4,    // the sender closed its session in good order
  request = 5,  // the sender asks for a model: its name, and in key.sequence its version
};

struct Frame {
  FrameKind kind = FrameKind::data;
  std::uint8_t code = 0;       // abort: the ErrorCode
  std::uint32_t transfer = 0;  // data: index of the transfer in the schedule
  // data: index of the segment-grid cell; start: milliseconds until the sender says so again if
  // it still waits, 0: not told.
  std::uint32_t cell = 0;
  OpKey key;  // data, start: the operation
  std::uint64_t fingerprint =
      0;  // data, start: hash of what the sender means by this operation
  std::uint64_t payload_bytes = 0;
  // data, not on the wire: the receiver may read the payload where it lies. False where both
  // ends write over what they send each other: each would wait for the other to read first.
  bool may_lend = true;
  // data, not on the wire: bytes that the whole operation sends to this peer, 0: unknown.
  std::uint64_t operation_bytes = 0;
  // data: the payload stands in the receiver's memory already (Delivery::returned), so that
  // only the frame itself is sent.
  bool in_place = false;
};

// How one incoming data frame is to be delivered; filled in by FrameSink::begin.
struct Delivery {
  enum class Mode : std::uint8_t {
    direct,  // write the payload into `regions`, in order
    stream,  // hand the payload to consume() piece by piece
  };
  Mode mode = Mode::direct;
  // direct: where the payload goes; stream with may_return: where its result stands. Together
  // exactly payload_bytes long.
  std::vector<Region> regions;
  int peer = -1;
  Frame frame;
  // stream: the result is what the peer is to be sent next, so where the payload lies in the
  // peer's memory the transport may write it there at once, and says so in `returned`.
  bool may_return = false;
  bool returned = false;
  std::uint64_t offset = 0;   // stream: payload bytes consumed so far
  void* context = nullptr;    // the sink's own
  std::uint64_t message = 0;  // the sink's own
};

// What the owner of a transport does with what arrives. No call may throw.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // A data header arrived. False: it breaks the protocol, and the peer is to be dropped.
  virtual bool begin(int peer, const Frame& frame, Delivery& delivery) noexcept = 0;
  // Stream mode: takes a prefix of `bytes` and returns its length; it leaves at most the bytes
  // of one incomplete element.
  virtual std::size_t consume(Delivery& delivery,
                              std::span<const std::byte> bytes) noexcept = 0;
  virtual void finished(Delivery& delivery) noexcept = 0;  // the whole payload was delivered
  virtual void control(int peer, const Frame& frame, std::string_view text) noexcept = 0;
  virtual void sent(std::uint64_t ticket) noexcept = 0;  // the regions of this frame are free
  virtual void lost(int peer,
                    const std::string& reason) noexcept = 0;  // no more from this peer
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const noexcept = 0;
  // Sends a data frame. True: the regions are free already, and sent() will not be called.
  virtual bool send(int peer, const Frame& frame, std::span<const Region> regions,
                    std::uint64_t ticket) = 0;
  virtual void send_control(int peer, const Frame& frame, std::string_view text) = 0;
  // True while frames to `peer` wait for room; new control frames would only pile up.
  virtual bool congested(int peer) const noexcept = 0;
  // Delivers what has arrived and sends what there is room for. Never blocks.
  virtual void progress(FrameSink& sink) = 0;
  // Blocks until progress() may have something to do, wake() is called or `until` has passed.
  virtual void wait(Clock::time_point until) = 0;
  virtual void wake() noexcept = 0;
  // Sends what is queued, as far as that is possible before `until`, and lets go of every
  // region. Afterwards nothing touches memory that was given to send() or named by begin().
  virtual void close(Clock::time_point until) noexcept = 0;
};

inline constexpr std::size_t kMaxControlBytes = 16384;  // longest text of a control frame

}  // namespace kf
