#include "transport/tcp/connection.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace kf {

namespace {

constexpr std::size_t kStageBytes = 64 * 1024;   // stays in the second-level cache
constexpr std::size_t kFairBytes = 1024 * 1024;  // of one peer before the next has its turn
constexpr std::size_t kVectors = 64;             // of one system call
constexpr std::uint64_t kSmallOperation = 64 * 1024;  // bytes to one peer; may overtake
constexpr std::size_t kOvertaking = 256 * 1024;       // bytes, before the others have a turn

bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK;
}

// Messages find their operation by its key, so it is all the same to the receiver which comes
// first. A goodbye stays behind everything.
bool may_overtake(const Frame& frame) {
  if (frame.kind == FrameKind::start) return true;
  return frame.kind == FrameKind::data && frame.operation_bytes > 0 &&
         frame.operation_bytes <= kSmallOperation;
}

}  // namespace

Connection::Connection(Fd fd, int peer)
    : fd_(std::move(fd)), peer_(peer), stage_(kStageBytes) {}

std::ptrdiff_t Connection::write_some(const Header& header, std::span<const Region> regions,
                                      std::size_t done) noexcept {
  std::array<iovec, kVectors> vectors{};
  std::size_t count = 0;
  std::size_t skip = done;
  const auto add = [&](const std::byte* data, std::size_t size) {
    if (skip >= size) {
      skip -= size;
    } else if (count < kVectors) {
      vectors[count++] = {const_cast<std::byte*>(data) + skip, size - skip};
      skip = 0;
    }
  };
  add(header.data(), header.size());
  for (const Region& region : regions) add(region.data(), region.size());
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = count;
  for (;;) {
    const ssize_t written = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written >= 0 || errno != EINTR) return written;
  }
}

bool Connection::send_data(const Frame& frame, std::span<const Region> regions,
                           std::uint64_t ticket) {
  const Header header = encode(frame);
  const std::size_t total = header.size() + static_cast<std::size_t>(frame.payload_bytes);
  std::size_t done = 0;
  while (!queued() && broken_ == 0 && done < total) {
    const std::ptrdiff_t written = write_some(header, regions, done);
    if (written < 0) {
      if (!would_block(errno)) broken_ = errno;
      break;
    }
    done += static_cast<std::size_t>(written);
  }
  if (done == total) return true;
  auto& queue = done == 0 && may_overtake(frame) ? urgent_ : queue_;
  queue.push_back({header, {regions.begin(), regions.end()}, {}, ticket, true, done, total});
  return false;
}

void Connection::send_control(const Frame& frame, std::string_view text) {
  Frame sized = frame;
  const std::string_view bounded = text.substr(0, kMaxControlBytes);
  sized.payload_bytes = bounded.size();
  const bool first = !queued();
  auto& queue = may_overtake(frame) ? urgent_ : queue_;
  queue.push_back(
      {encode(sized), {}, std::string(bounded), 0, false, 0, kHeaderBytes + bounded.size()});
  if (first) drain();
}

std::deque<Connection::Outgoing>& Connection::next_queue() noexcept {
  if (queue_.empty()) return urgent_;
  const bool midway = queue_.front().done > 0;
  const bool patient = overtook_ < kOvertaking || !queue_.front().is_data;
  const bool overtake = !urgent_.empty() && (urgent_.front().done > 0 || (!midway && patient));
  return overtake ? urgent_ : queue_;
}

void Connection::pop(std::deque<Outgoing>& queue) noexcept {
  overtook_ = &queue == &urgent_ && !queue_.empty() ? overtook_ + queue.front().total : 0;
  queue.pop_front();
}

std::ptrdiff_t Connection::write_some(Outgoing& next) noexcept {
  if (next.is_data) return write_some(next.header, next.regions, next.done);
  const Region text(reinterpret_cast<std::byte*>(next.text.data()), next.text.size());
  return write_some(next.header, {&text, 1}, next.done);
}

std::string Connection::flush(FrameSink& sink) {
  while (queued() && broken_ == 0) {
    std::deque<Outgoing>& queue = next_queue();
    Outgoing& next = queue.front();
    const std::ptrdiff_t written = write_some(next);
    if (written < 0) {
      if (!would_block(errno)) broken_ = errno;
      break;
    }
    next.done += static_cast<std::size_t>(written);
    if (next.done < next.total) continue;
    const std::uint64_t ticket = next.ticket;
    const bool is_data = next.is_data;
    pop(queue);
    if (is_data) sink.sent(ticket);
  }
  return broken_ == 0 ? std::string() : error_text(broken_);
}

void Connection::drop_data() noexcept {
  const auto unsent = [](const Outgoing& frame) { return frame.is_data && frame.done == 0; };
  std::erase_if(queue_, unsent);
  std::erase_if(urgent_, unsent);
}

bool Connection::drain() noexcept {
  while (queued() && broken_ == 0) {
    std::deque<Outgoing>& queue = next_queue();
    Outgoing& next = queue.front();
    const std::ptrdiff_t written = write_some(next);
    if (written < 0) {
      if (would_block(errno)) return false;
      broken_ = errno;
      return true;
    }
    next.done += static_cast<std::size_t>(written);
    if (next.done == next.total) pop(queue);
  }
  return true;
}

bool Connection::acknowledged() const noexcept {
  if (!fd_ || broken_ != 0) return true;
  int bytes = 0;
  if (::ioctl(fd_.get(), SIOCOUTQ, &bytes) != 0 || bytes == 0) return true;
  pollfd gone{fd_.get(), 0, 0};
  return ::poll(&gone, 1, 0) > 0 && (gone.revents & (POLLERR | POLLHUP)) != 0;
}

void Connection::close() noexcept {
  if (fd_) ::shutdown(fd_.get(), SHUT_WR);
  fd_.reset();
  queue_.clear();
  urgent_.clear();
}

// Reads into the regions of a direct delivery, then into the stage, with one system call.
std::ptrdiff_t Connection::read_some() {
  std::array<iovec, kVectors> vectors{};
  std::size_t count = 0;
  if (reading_ == Reading::direct && staged() == 0) {
    for (std::size_t r = region_; r < delivery_.regions.size() && count + 1 < kVectors; ++r) {
      const Region& region = delivery_.regions[r];
      vectors[count++] = {region.data(), region.size()};
    }
  }
  const bool all_regions = region_ + count >= delivery_.regions.size();
  if (reading_ != Reading::direct || staged() > 0 || all_regions) {
    vectors[count++] = {stage_.data() + stage_end_, stage_.size() - stage_end_};
  }
  for (;;) {
    const ssize_t got = ::readv(fd_.get(), vectors.data(), static_cast<int>(count));
    if (got >= 0 || errno != EINTR) return got;
  }
}

std::string Connection::receive(FrameSink& sink) {
  std::size_t taken = 0;
  while (taken < kFairBytes) {
    const std::ptrdiff_t got = read_some();
    if (got == 0) return "it closed the connection";
    if (got < 0) {
      if (would_block(errno)) return {};
      return error_text(errno);
    }
    taken += static_cast<std::size_t>(got);
    bytes_received_ += static_cast<std::uint64_t>(got);
    std::size_t into_stage = static_cast<std::size_t>(got);
    if (reading_ == Reading::direct && staged() == 0) {
      const auto into_regions =
          static_cast<std::size_t>(std::min<std::uint64_t>(left_, into_stage));
      advance_direct(into_regions);
      into_stage -= into_regions;
    }
    stage_end_ += into_stage;
    const bool full = stage_end_ == stage_.size() || reading_ == Reading::direct;
    if (reading_ == Reading::direct && left_ == 0) end_frame(sink);
    if (!parse(sink)) return "it broke the protocol";
    if (!full) return {};  // the socket had no more
  }
  return {};
}

bool Connection::parse(FrameSink& sink) {
  bool progress = true;
  while (progress) {
    const std::size_t before = staged();
    const Reading state = reading_;
    switch (reading_) {
      case Reading::header:
        if (!parse_header(sink)) return false;
        break;
      case Reading::text:
        if (staged() < left_) break;
        sink.control(peer_, frame_,
                     {reinterpret_cast<const char*>(stage_.data() + stage_begin_),
                      static_cast<std::size_t>(left_)});
        stage_begin_ += static_cast<std::size_t>(left_);
        reading_ = Reading::header;
        break;
      case Reading::direct:
        parse_direct(sink);
        break;
      case Reading::stream:
        if (!parse_stream(sink)) return false;
        break;
    }
    progress = staged() != before || reading_ != state;
  }
  // what is left is less than a header, a text or an element: move it to the front
  if (stage_begin_ > 0) {
    std::memmove(stage_.data(), stage_.data() + stage_begin_, staged());
    stage_end_ -= stage_begin_;
    stage_begin_ = 0;
  }
  return true;
}

bool Connection::parse_header(FrameSink& sink) {
  if (staged() < kHeaderBytes) return true;
  if (!decode(stage_.data() + stage_begin_, frame_)) return false;
  stage_begin_ += kHeaderBytes;
  left_ = frame_.payload_bytes;
  if (frame_.kind != FrameKind::data) {
    reading_ = Reading::text;
    return true;
  }
  if (!sink.begin(peer_, frame_, delivery_)) return false;
  region_ = 0;
  reading_ = delivery_.mode == Delivery::Mode::direct ? Reading::direct : Reading::stream;
  if (left_ == 0) end_frame(sink);
  return true;
}

void Connection::parse_direct(FrameSink& sink) {
  while (left_ > 0 && staged() > 0) {
    const std::size_t bytes = std::min(delivery_.regions[region_].size(), staged());
    std::memcpy(delivery_.regions[region_].data(), stage_.data() + stage_begin_, bytes);
    stage_begin_ += bytes;
    advance_direct(bytes);
  }
  if (left_ == 0) end_frame(sink);
}

bool Connection::parse_stream(FrameSink& sink) {
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(left_, staged()));
  const std::size_t taken = sink.consume(delivery_, {stage_.data() + stage_begin_, bytes});
  stage_begin_ += taken;
  left_ -= taken;
  if (left_ == 0) {
    end_frame(sink);
    return true;
  }
  // a whole message is there and the sink leaves some of it: it would wait for ever
  return bytes < left_ + taken || taken > 0;
}

void Connection::advance_direct(std::size_t bytes) noexcept {
  left_ -= bytes;
  while (bytes > 0) {
    Region& region = delivery_.regions[region_];
    const std::size_t part = std::min(bytes, region.size());
    region = region.subspan(part);
    bytes -= part;
    if (region.empty()) ++region_;
  }
}

void Connection::end_frame(FrameSink& sink) {
  reading_ = Reading::header;
  sink.finished(delivery_);
}

}  // namespace kf
