// What the executor does with what arrives: the callbacks of its FrameSink side.
#include <algorithm>

#include "executor/executor.h"

namespace kf {

namespace {

constexpr std::size_t kMaxUnexpectedBytes = std::size_t{64} << 20;  // kept from one peer
constexpr std::size_t kMaxAnnouncements = 4096;                     // kept from one peer

}  // namespace

bool Executor::begin(int peer, const Frame& frame, Delivery& delivery) noexcept {
  return guarded([&] {
    peer_at(peer).heard = Clock::now();
    delivery.mode = Delivery::Mode::stream;  // without a context: discard
    delivery.regions.clear();
    delivery.peer = peer;
    delivery.frame = frame;
    delivery.may_return = false;
    delivery.returned = false;
    delivery.offset = 0;
    delivery.context = nullptr;
    delivery.message = Operation::kNone;
    Running* running = find(frame.key);
    if (running == nullptr) return begin_unexpected(peer, frame, delivery);
    if (!agree(*running, peer, frame.fingerprint, nullptr)) return true;
    return begin_expected(*running, peer, frame, delivery);
  });
}

bool Executor::begin_expected(Running& running, int peer, const Frame& frame,
                              Delivery& delivery) {
  Operation& operation = *running.operation;
  const auto message = operation.find(peer, frame.transfer, frame.cell);
  if (message == Operation::kNone || !operation.arrive(message) ||
      frame.payload_bytes != static_cast<std::uint64_t>(
                                 operation.layout().payload_bytes(operation.range(message)))) {
    break_off(peer, "data that do not belong to " + operation.shape()->words());
    return false;
  }
  delivery.context = &operation;
  delivery.message = message;
  if (!operation.ready(message)) {
    delivery.mode = Delivery::Mode::direct;
    const auto held = operation.hold(message, static_cast<std::size_t>(frame.payload_bytes));
    if (!held.empty()) delivery.regions.push_back(held);
  } else if (operation.transfer(message).combine == Combine::replace) {
    operation.touch(message);
    delivery.mode = Delivery::Mode::direct;
    operation.layout().append_regions(operation.range(message), delivery.regions);
  } else if (operation.transfer(message).returned_by >= 0) {
    delivery.may_return = true;
    operation.layout().append_regions(operation.range(message), delivery.regions);
  }
  return true;
}

bool Executor::begin_unexpected(int peer, const Frame& frame, Delivery& delivery) {
  if (finished_before(frame.key)) {
    break_off(peer, "data of an operation that is over");
    return false;
  }
  Peer& from = peer_at(peer);
  from.unexpected_bytes += static_cast<std::size_t>(
      std::min<std::uint64_t>(frame.payload_bytes, kMaxUnexpectedBytes + 1));
  if (from.unexpected_bytes > kMaxUnexpectedBytes) {
    break_off(peer, "more than 64 MiB for operations that have not been started here");
    return false;
  }
  auto data = std::make_unique<Unexpected>(Unexpected{
      peer, frame, std::vector<std::byte>(static_cast<std::size_t>(frame.payload_bytes))});
  delivery.mode = Delivery::Mode::direct;
  if (!data->bytes.empty()) delivery.regions.emplace_back(data->bytes);
  delivery.context = data.get();
  const void* key = data.get();
  arriving_.emplace(key, std::move(data));
  return true;
}

std::size_t Executor::consume(Delivery& delivery, std::span<const std::byte> bytes) noexcept {
  std::size_t taken = bytes.size();
  guarded([&] {
    if (delivery.context == nullptr) return true;
    auto& operation = *static_cast<Operation*>(delivery.context);
    taken =
        operation.apply(delivery.message, static_cast<std::int64_t>(delivery.offset), bytes);
    return true;
  });
  delivery.offset += taken;
  return taken;
}

void Executor::finished(Delivery& delivery) noexcept {
  guarded([&] {
    PeerStats& stats = stats_.peers[static_cast<std::size_t>(delivery.peer)];
    ++stats.messages_received;
    stats.bytes_received += static_cast<std::int64_t>(delivery.frame.payload_bytes);
    if (delivery.context == nullptr) return true;
    if (delivery.message == Operation::kNone) {
      const auto found = arriving_.find(delivery.context);
      const std::unique_ptr<Unexpected> data = std::move(found->second);
      arriving_.erase(found);
      if (Running* running = find(data->frame.key)) {  // started while the payload was arriving
        peer_at(data->peer).unexpected_bytes -= data->bytes.size();
        accept(*running, *data);
        if (!death_) advance(*running);
      } else {
        unexpected_[data->frame.key].push_back(std::move(*data));
      }
      return true;
    }
    auto& operation = *static_cast<Operation*>(delivery.context);
    const auto message = delivery.message;
    operation.received(message);
    if (delivery.returned) operation.mark_returned(message);
    if (operation.holding(message)) {
      operation.fill(message);
      if (!operation.ready(message)) return true;
      operation.apply_held(message);
    }
    operation.complete(message);
    advance(*find(operation.key()));
    return true;
  });
}

void Executor::control(int peer, const Frame& frame, std::string_view text) noexcept {
  guarded([&] {
    peer_at(peer).heard = Clock::now();
    switch (frame.kind) {
      case FrameKind::start:
        on_start(peer, frame, text);
        return true;
      case FrameKind::abort:
        if (frame.code > static_cast<std::uint8_t>(ErrorCode::internal)) {
          break_off(peer, "an unknown error code");
          return true;
        }
        die(static_cast<ErrorCode>(frame.code), std::string(text));
        return true;
      case FrameKind::bye:
        peer_at(peer).departed = true;
        for (const Running& running : running_) {
          if (!running.operation->needs(peer)) continue;
          die(ErrorCode::peer_lost, rank_name(peer) + " closed its session while " +
                                        rank_name(rank_) + " waits for it in " +
                                        running.operation->shape()->words());
          break;
        }
        return true;
      case FrameKind::request:
        if (on_request) on_request(peer, frame, text);
        return true;
      case FrameKind::data:
        break;
    }
    break_off(peer, "a control frame of an unknown kind");
    return true;
  });
}

void Executor::on_start(int peer, const Frame& frame, std::string_view text) {
  Peer& from = peer_at(peer);
  from.last_start = std::string(text);
  from.pause = std::chrono::milliseconds(frame.cell);
  if (Running* running = find(frame.key)) {
    if (agree(*running, peer, frame.fingerprint, &from.last_start)) advance(*running);
    return;
  }
  if (finished_before(frame.key)) return;  // a stall announcement that crossed our last message
  from.announced[frame.key] = {frame.fingerprint, from.last_start};
  if (from.announced.size() > kMaxAnnouncements) {
    break_off(peer, "announcements of more than 4096 operations not started here");
  }
}

void Executor::sent(std::uint64_t ticket) noexcept {
  guarded([&] {
    const auto found = by_number(ticket >> kMessageBits);
    if (found == running_.end()) return false;
    found->operation->complete(ticket & (Operation::kMaxMessages - 1));
    advance(*found);
    return true;
  });
}

void Executor::lost(int peer, const std::string& reason) noexcept {
  guarded([&] {
    if (!peer_at(peer).departed) {
      die(ErrorCode::peer_lost, rank_name(peer) + " was lost: " + reason);
    }
    return true;
  });
}

}  // namespace kf
