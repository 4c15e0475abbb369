// The order in which one connection sends what waits.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "transport/tcp/connection.h"
#include "transport/tcp/socket.h"

namespace kf {

namespace {

constexpr std::size_t kSegment = 256 * 1024;
constexpr int kSegments = 64;
constexpr std::uint64_t kLarge = 1, kSmall = 2, kStart = 3, kBye = 4;

struct Recorder final : FrameSink {
  std::vector<std::uint64_t> arrived;  // sequence of the operation of each frame
  std::vector<std::byte> scratch = std::vector<std::byte>(kSegment);

  bool begin(int, const Frame& frame, Delivery& delivery) noexcept override {
    delivery = {};
    delivery.frame = frame;
    delivery.regions.emplace_back(scratch.data(),
                                  static_cast<std::size_t>(frame.payload_bytes));
    return true;
  }
  std::size_t consume(Delivery&, std::span<const std::byte> bytes) noexcept override {
    return bytes.size();
  }
  void finished(Delivery& delivery) noexcept override {
    arrived.push_back(delivery.frame.key.sequence);
  }
  void control(int, const Frame& frame, std::string_view) noexcept override {
    arrived.push_back(frame.kind == FrameKind::bye ? kBye : kStart);
  }
  void sent(std::uint64_t) noexcept override {}
  void lost(int, const std::string&) noexcept override {}
};

class ConnectionOrder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()),
              0);
    sender = std::make_unique<Connection>(Fd(ends[0]), 1);
    receiver = std::make_unique<Connection>(Fd(ends[1]), 0);
  }

  void send(std::uint64_t sequence, std::size_t bytes, std::uint64_t operation_bytes) {
    Frame frame;
    frame.key.sequence = sequence;
    frame.payload_bytes = bytes;
    frame.operation_bytes = operation_bytes;
    const std::array<Region, 1> regions = {Region(payload.data(), bytes)};
    sender->send_data(frame, regions, 0);
  }
  void send_large() {
    for (int i = 0; i < kSegments; ++i) send(kLarge, kSegment, kSegment * kSegments);
  }
  void send_control(FrameKind kind) {
    Frame frame;
    frame.kind = kind;
    sender->send_control(frame, "text");
  }
  std::vector<std::uint64_t> deliver() {
    Recorder ignore;
    for (bool more = true; more;) {
      EXPECT_EQ(sender->flush(ignore), "");
      const std::uint64_t before = receiver->bytes_received();
      EXPECT_EQ(receiver->receive(recorder), "");
      more = sender->queued() || receiver->bytes_received() != before;
    }
    return recorder.arrived;
  }
  std::ptrdiff_t place(std::uint64_t sequence) const {
    const auto& all = recorder.arrived;
    return std::find(all.begin(), all.end(), sequence) - all.begin();
  }

  std::vector<std::byte> payload = std::vector<std::byte>(kSegment);
  std::unique_ptr<Connection> sender;
  std::unique_ptr<Connection> receiver;
  Recorder recorder;
};

}  // namespace

TEST_F(ConnectionOrder, ASmallOperationOvertakesWhatWaitsOfALargeOne) {
  send_large();
  ASSERT_TRUE(sender->queued());
  send_control(FrameKind::start);
  send(kSmall, 1000, 1000);
  send_control(FrameKind::bye);
  ASSERT_EQ(deliver().size(), kSegments + 3U);
  // only what is in the socket, and the frame that was being sent, are before it
  EXPECT_LT(place(kSmall), 8);
  EXPECT_EQ(place(kStart) + 1, place(kSmall));
  EXPECT_EQ(recorder.arrived.back(), kBye);
}

TEST_F(ConnectionOrder, SmallOperationsLeaveALargeOneItsTurn) {
  send_large();
  for (int i = 0; i < 512; ++i) send(kSmall, 16 * 1024, 16 * 1024);
  deliver();
  const auto last = recorder.arrived.rend() -
                    std::find(recorder.arrived.rbegin(), recorder.arrived.rend(), kLarge);
  // 512 small frames give way 32 times, once for each 256 KiB
  EXPECT_LT(place(kSmall), 8);
  int large_before_last_small = 0;
  int small = 0;
  for (const std::uint64_t frame : recorder.arrived) {
    if (frame == kSmall) ++small;
    if (frame == kLarge && small > 0 && small < 512) ++large_before_last_small;
  }
  EXPECT_GE(large_before_last_small, 30);
  EXPECT_EQ(last, static_cast<std::ptrdiff_t>(recorder.arrived.size()));
}

TEST_F(ConnectionOrder, LargeOperationsAreSentInTheirOrder) {
  for (int i = 0; i < kSegments; ++i) {
    send(static_cast<std::uint64_t>(100 + i), kSegment, kSegment * kSegments);
  }
  const auto arrived = deliver();
  ASSERT_EQ(arrived.size(), static_cast<std::size_t>(kSegments));
  for (int i = 0; i < kSegments; ++i) {
    EXPECT_EQ(arrived[static_cast<std::size_t>(i)], static_cast<std::uint64_t>(100 + i));
  }
}

}  // namespace kf
