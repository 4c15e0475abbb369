#include "executor/executor.h"

#include <algorithm>
#include <cstring>

namespace kf {

namespace {

constexpr std::size_t kMaxUnexpectedBytes = std::size_t{64} << 20;  // kept from one peer
constexpr std::size_t kMaxAnnouncements = 4096;                     // kept from one peer
constexpr int kMessageBits = 28;                                    // of a ticket

std::string list(const std::vector<int>& ranks) {
  std::string text = "[";
  for (const int rank : ranks) text += (text.size() > 1 ? ", " : "") + std::to_string(rank);
  return text + "]";
}

std::string rank_name(int rank) {
  return "rank " + std::to_string(rank);
}

}  // namespace

Executor::Executor(Transport& transport, int rank, int world_size)
    : transport_(transport), rank_(rank), peers_(static_cast<std::size_t>(world_size)) {
  stats_.peers.resize(static_cast<std::size_t>(world_size));
}

// Errors thrown inside a transport's callback must not unwind through the transport.
template <class Fn>
bool Executor::guarded(Fn&& fn) noexcept {
  if (death_) return false;
  try {
    return fn();
  } catch (const Error& error) {
    die(error.code(), error.what());
  } catch (const std::exception& error) {
    die(ErrorCode::internal, std::string("unexpected exception: ") + error.what());
  }
  return false;
}

std::shared_ptr<Operation> Executor::start(OperationSpec spec) {
  const OpKey key{spec.key.scope, next_sequence_[spec.key.scope]};
  spec.key = key;
  auto operation = std::make_shared<Operation>(std::move(spec));
  ++next_sequence_[key.scope];  // an operation that was refused has not been started
  const std::uint64_t number = next_number_++;
  Running& running = running_.emplace(number, Running{operation, number}).first->second;
  number_of_[key] = number;
  for (std::size_t p = 0; p < peers_.size(); ++p) {
    const int peer = static_cast<int>(p);
    if (peers_[p].departed && operation->needs(peer)) {
      die(ErrorCode::peer_lost, rank_name(peer) +
                                    " has closed its session and cannot take part in " +
                                    operation->spec().describe());
      return operation;
    }
    if (operation->edges()[p].announce) announce(peer, *operation);
  }
  take_waiting(running);
  if (!death_) advance(running);
  return operation;
}

void Executor::progress() {
  if (!death_) transport_.progress(*this);
}

void Executor::take_waiting(Running& running) {
  const std::shared_ptr<Operation> operation = running.operation;
  const OpKey key = operation->spec().key;
  for (std::size_t p = 0; p < peers_.size() && !death_; ++p) {
    const auto found = peers_[p].announced.find(key);
    if (found == peers_[p].announced.end()) continue;
    const Announcement announcement = std::move(found->second);
    peers_[p].announced.erase(found);
    agree(running, static_cast<int>(p), announcement.fingerprint, &announcement.text);
  }
  const auto waiting = unexpected_.find(key);
  if (waiting == unexpected_.end()) return;
  const std::vector<Unexpected> messages = std::move(waiting->second);
  unexpected_.erase(waiting);
  for (const Unexpected& message : messages) {
    peer_at(message.peer).unexpected_bytes -= message.bytes.size();
    if (!death_) accept(running, message);
  }
}

// Data of an operation that had not been started when the data came.
void Executor::accept(Running& running, const Unexpected& data) {
  if (!agree(running, data.peer, data.frame.fingerprint, nullptr)) return;
  Operation& operation = *running.operation;
  const auto message = operation.find(data.peer, data.frame.transfer, data.frame.cell);
  if (message == Operation::kNone || !operation.arrive(message) ||
      data.bytes.size() != static_cast<std::size_t>(
                               operation.layout().payload_bytes(operation.range(message)))) {
    return break_off(data.peer, "data that do not belong to " + operation.spec().describe());
  }
  const std::span<std::byte> held = operation.hold(message, data.bytes.size());
  if (!held.empty()) std::memcpy(held.data(), data.bytes.data(), held.size());
  operation.received(message);
  operation.fill(message);
  if (operation.ready(message)) {
    operation.apply_held(message);
    operation.complete(message);
  }
}

void Executor::advance(Running& running) {
  const std::shared_ptr<Operation> operation = running.operation;  // retire() frees `running`
  const std::uint64_t number = running.number;
  for (auto m = operation->take_ready(); m != Operation::kNone && !running.mismatched;
       m = operation->take_ready()) {
    const LocalTransfer& t = operation->transfer(m);
    Operation::Edge& edge = operation->edges()[static_cast<std::size_t>(t.peer)];
    if (!t.is_send) {
      if (!operation->filled(m)) continue;  // begin() finds it ready when it comes
      operation->apply_held(m);
      operation->complete(m);
    } else if (edge.gated && !edge.started) {
      edge.parked.push_back(m);
    } else {
      post(running, m);
    }
  }
  if (operation->done()) {
    operation->finish();
    retire(number);
  }
}

void Executor::retire(std::uint64_t number) {
  const auto found = running_.find(number);
  if (found == running_.end()) return;
  number_of_.erase(found->second.operation->spec().key);
  running_.erase(found);
  ++stats_.operations;
}

void Executor::post(Running& running, Operation::MessageId message) {
  Operation& operation = *running.operation;
  const LocalTransfer& t = operation.transfer(message);
  const ByteRange range = operation.range(message);
  regions_.clear();
  operation.layout().append_regions(range, regions_);
  Frame frame;
  frame.kind = FrameKind::data;
  frame.transfer = t.id;
  frame.cell = operation.cell(message);
  frame.key = operation.spec().key;
  frame.fingerprint = operation.spec().fingerprint;
  frame.payload_bytes = static_cast<std::uint64_t>(operation.layout().payload_bytes(range));
  PeerStats& stats = stats_.peers[static_cast<std::size_t>(t.peer)];
  ++stats.messages_sent;
  stats.bytes_sent += static_cast<std::int64_t>(frame.payload_bytes);
  const std::uint64_t ticket = (running.number << kMessageBits) | message;
  if (transport_.send(t.peer, frame, regions_, ticket)) operation.complete(message);
}

void Executor::announce(int peer, const Operation& operation) {
  Frame frame;
  frame.kind = FrameKind::start;
  frame.key = operation.spec().key;
  frame.fingerprint = operation.spec().fingerprint;
  ++stats_.control_messages;
  transport_.send_control(peer, frame, operation.spec().describe());
}

void Executor::announce_stall(const Operation& operation) {
  for (std::size_t p = 0; p < peers_.size(); ++p) {
    const int peer = static_cast<int>(p);
    if (peer != rank_ && !peers_[p].departed && !transport_.congested(peer)) {
      announce(peer, operation);
    }
  }
}

std::string Executor::explain(const Operation& operation, Clock::time_point now) const {
  std::vector<int> silent;
  std::vector<int> elsewhere;
  std::string other;
  for (std::size_t p = 0; p < peers_.size(); ++p) {
    if (static_cast<int>(p) == rank_) continue;
    const Operation::Edge& edge = operation.edges()[p];
    const bool took_part = edge.started || edge.receives_left == 0;
    if (now - peers_[p].heard > std::chrono::milliseconds(2500)) {
      silent.push_back(static_cast<int>(p));
    } else if (!took_part && !peers_[p].last_start.empty() &&
               peers_[p].last_start != operation.spec().describe()) {
      elsewhere.push_back(static_cast<int>(p));
      other += "; " + rank_name(static_cast<int>(p)) + " was last in " + peers_[p].last_start;
    }
  }
  std::string text = "waiting for ranks " + list(operation.waits_for());
  if (!silent.empty()) text += "; no sign of life from ranks " + list(silent);
  if (!elsewhere.empty()) text += "; missing ranks: " + list(elsewhere) + other;
  return text;
}

Executor::Running* Executor::find(const OpKey& key) {
  const auto found = number_of_.find(key);
  return found == number_of_.end() ? nullptr : &running_.at(found->second);
}

bool Executor::finished_before(const OpKey& key) const {
  const auto found = next_sequence_.find(key.scope);
  return found != next_sequence_.end() && key.sequence < found->second;
}

// True when the peer means the same by the operation. Otherwise the session dies of a mismatch:
// at once when the peer's meaning is known in words; else this rank tells the peer its own, and
// the peer, knowing both, tells everyone.
bool Executor::agree(Running& running, int peer, std::uint64_t fingerprint,
                     const std::string* text) {
  Operation& operation = *running.operation;
  if (fingerprint == operation.spec().fingerprint) {
    operation.peer_started(peer);
    return !running.mismatched;
  }
  if (text == nullptr) {
    if (!running.mismatched) announce(peer, operation);
    running.mismatched = true;
    return false;
  }
  const std::string which =
      operation.spec().key.scope == 0
          ? "unnamed operation " + std::to_string(operation.spec().key.sequence)
          : "a named operation";
  const std::string mine = rank_name(rank_) + " called " + operation.spec().describe();
  const std::string theirs = rank_name(peer) + " called " + *text;
  die(ErrorCode::mismatch, "ranks disagree about " + which + ": " +
                               (rank_ < peer ? mine + ", " + theirs : theirs + ", " + mine));
  return false;
}

bool Executor::begin(int peer, const Frame& frame, Delivery& delivery) noexcept {
  return guarded([&] {
    peer_at(peer).heard = Clock::now();
    delivery.mode = Delivery::Mode::stream;  // without a context: discard
    delivery.regions.clear();
    delivery.peer = peer;
    delivery.frame = frame;
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
    break_off(peer, "data that do not belong to " + operation.spec().describe());
    return false;
  }
  delivery.context = &operation;
  delivery.message = message;
  if (!operation.ready(message)) {
    delivery.mode = Delivery::Mode::direct;
    const auto held = operation.hold(message, static_cast<std::size_t>(frame.payload_bytes));
    if (!held.empty()) delivery.regions.push_back(held);
  } else if (operation.transfer(message).combine == Combine::replace) {
    delivery.mode = Delivery::Mode::direct;
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
    if (operation.holding(message)) {
      operation.fill(message);
      if (!operation.ready(message)) return true;
      operation.apply_held(message);
    }
    operation.complete(message);
    advance(*find(operation.spec().key));
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
        for (const auto& [number, running] : running_) {
          if (!running.operation->needs(peer)) continue;
          die(ErrorCode::peer_lost, rank_name(peer) + " closed its session while " +
                                        rank_name(rank_) + " waits for it in " +
                                        running.operation->spec().describe());
          break;
        }
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
    const auto found = running_.find(ticket >> kMessageBits);
    if (found == running_.end()) return false;
    found->second.operation->complete(ticket & (Operation::kMaxMessages - 1));
    advance(found->second);
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

void Executor::break_off(int peer, const std::string& what) {
  die(ErrorCode::transport, rank_name(peer) + " broke the protocol: it sent " + what);
}

// Also a rank that learnt of the death from a peer passes it on before its connections close:
// its other peers would else see only the closing, and blame this rank.
void Executor::die(ErrorCode code, const std::string& text) {
  if (death_) return;
  death_.emplace(code, text);
  Frame frame;
  frame.kind = FrameKind::abort;
  frame.code = static_cast<std::uint8_t>(code);
  const std::string_view bounded = std::string_view(text).substr(0, kMaxControlBytes);
  for (std::size_t p = 0; p < peers_.size(); ++p) {
    if (static_cast<int>(p) == rank_ || peers_[p].departed) continue;
    transport_.send_control(static_cast<int>(p), frame, bounded);
  }
}

void Executor::leave() {
  if (death_) return;
  death_.emplace(ErrorCode::aborted, "the session was closed");
  Frame frame;
  frame.kind = FrameKind::bye;
  for (std::size_t p = 0; p < peers_.size(); ++p) {
    if (static_cast<int>(p) == rank_ || peers_[p].departed) continue;
    transport_.send_control(static_cast<int>(p), frame, {});
  }
}

void Executor::bury(Clock::time_point until) noexcept {
  if (buried_) return;
  buried_ = true;
  transport_.close(until);
  if (death_ && death_->code() != ErrorCode::aborted) {
    for (auto& [number, running] : running_) running.operation->restore();
  }
  running_.clear();
  number_of_.clear();
  unexpected_.clear();
  arriving_.clear();
}

}  // namespace kf
