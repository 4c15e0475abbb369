// One authenticated connection: what waits to be sent, and the frame that is arriving.
//
// Threads: under the owner's lock only. Never blocks.
// Ownership: owns its socket. Regions of queued frames belong to the caller, see
// kf/transport.h.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "kf/transport.h"
#include "transport/tcp/socket.h"
#include "transport/wire.h"

namespace kf {

class Connection {
 public:
  Connection(Fd fd, int peer);

  int fd() const noexcept { return fd_.get(); }
  int peer() const noexcept { return peer_; }
  bool open() const noexcept { return static_cast<bool>(fd_); }
  bool queued() const noexcept { return !queue_.empty() || !urgent_.empty(); }
  std::uint64_t bytes_received() const noexcept { return bytes_received_; }

  // True: sent completely. False: queued; its ticket is reported when it is sent.
  bool send_data(const Frame& frame, std::span<const Region> regions, std::uint64_t ticket);
  void send_control(const Frame& frame, std::string_view text);

  // Both return an empty text, or why the connection is of no more use.
  std::string flush(FrameSink& sink);    // sends as much of the queue as there is room for
  std::string receive(FrameSink& sink);  // delivers what has arrived, up to a fair amount

  // Drops queued data frames of which nothing was sent yet.
  void drop_data() noexcept;
  // Sends without reporting it to a sink, for control frames and at the end; true when the
  // queue is empty or the connection is broken.
  bool drain() noexcept;
  // The peer's system has all that was written, or will never have it.
  bool acknowledged() const noexcept;
  void close() noexcept;

 private:
  struct Outgoing {
    Header header;
    std::vector<Region> regions;
    std::string text;  // payload of a control frame
    std::uint64_t ticket = 0;
    bool is_data = false;
    std::size_t done = 0;  // bytes sent, header included
    std::size_t total = 0;
  };
  enum class Reading : std::uint8_t { header, text, direct, stream };

  // Bytes written of header and regions from `done` on; -1 with errno set.
  std::ptrdiff_t write_some(const Header& header, std::span<const Region> regions,
                            std::size_t done) noexcept;
  std::ptrdiff_t write_some(Outgoing& next) noexcept;
  // The frame to go on with, of which something may be sent already; not empty.
  std::deque<Outgoing>& next_queue() noexcept;
  void pop(std::deque<Outgoing>& queue) noexcept;  // its first frame is sent
  std::ptrdiff_t read_some();
  bool parse(FrameSink& sink);  // false: the peer broke the protocol
  bool parse_header(FrameSink& sink);
  void parse_direct(FrameSink& sink);
  bool parse_stream(FrameSink& sink);
  void advance_direct(std::size_t bytes) noexcept;
  void end_frame(FrameSink& sink);
  std::size_t staged() const noexcept { return stage_end_ - stage_begin_; }

  Fd fd_;
  int peer_;
  int broken_ = 0;  // errno of a failed write, reported by the next flush
  std::deque<Outgoing> queue_;
  // Of small operations and what starts them: they need not wait until the frames of a large
  // one are sent, which may be all of its bytes. Both queues are in the order of the calls.
  std::deque<Outgoing> urgent_;
  std::size_t overtook_ = 0;  // urgent bytes sent since the last frame of the other queue
  std::uint64_t bytes_received_ = 0;  // headers included

  std::vector<std::byte> stage_;
  std::size_t stage_begin_ = 0;
  std::size_t stage_end_ = 0;
  Reading reading_ = Reading::header;
  Frame frame_;
  Delivery delivery_;
  std::size_t region_ = 0;  // direct: the region being filled
  std::uint64_t left_ = 0;  // payload bytes still to come
};

}  // namespace kf
