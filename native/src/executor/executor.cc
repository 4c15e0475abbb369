#include "executor/executor.h"

#include <algorithm>

#include <cstring>

namespace kf {

namespace {

std::string list(const std::vector<int>& ranks) {
  std::string text = "[";
  for (const int rank : ranks) text += (text.size() > 1 ? ", " : "") + std::to_string(rank);
  return text + "]";
}

}  // namespace

Executor::Executor(Transport& transport, int rank, int world_size)
    : transport_(transport), rank_(rank), peers_(static_cast<std::size_t>(world_size)) {
  stats_.peers.resize(static_cast<std::size_t>(world_size));
}

std::shared_ptr<Operation> Executor::start(OperationSpec spec,
                                           std::shared_ptr<NormSums> norms) {
  spec.peers = static_cast<int>(peers_.size());
  const std::vector<Piece> pieces = spec.pieces;
  auto operation =
      std::make_shared<Operation>(std::make_shared<OperationShape>(std::move(spec)));
  operation->restart(pieces);
  if (norms != nullptr) operation->measure(std::move(norms));
  start(operation);
  return operation;
}

void Executor::start(std::shared_ptr<Operation> starting) {
  const std::uint64_t scope = starting->spec().key.scope;
  starting->set_key({scope, scope == 0 ? next_unnamed_++ : next_sequence_.take(scope)});
  running_.push_back({std::move(starting), next_number_++});
  const Operation& operation = *running_.back().operation;
  for (std::size_t p = 0; p < peers_.size(); ++p) {
    if (operation.edges()[p].announce && !peers_[p].departed) {
      announce(static_cast<int>(p), operation);
    }
  }
  take_waiting(running_.back());
  refuse_departed(operation);
  if (!death_) advance(running_.back());
}

// A peer that has left may have sent all that this operation needs of it; more will not come.
void Executor::refuse_departed(const Operation& operation) {
  for (std::size_t p = 0; p < peers_.size(); ++p) {
    const int peer = static_cast<int>(p);
    if (!peers_[p].departed || !operation.needs(peer)) continue;
    die(ErrorCode::peer_lost, rank_name(peer) +
                                  " has closed its session and cannot take part in " +
                                  operation.shape()->words());
  }
}

void Executor::progress() {
  if (!death_) transport_.progress(*this);
}

void Executor::take_waiting(Running& running) {
  const std::shared_ptr<Operation> operation = running.operation;
  const OpKey key = operation->key();
  for (std::size_t p = 0; p < peers_.size() && !death_; ++p) {
    if (peers_[p].announced.empty()) continue;
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
    return break_off(data.peer, "data that do not belong to " + operation.shape()->words());
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
    Edge& edge = operation->edges()[static_cast<std::size_t>(t.peer)];
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
  const auto found = by_number(number);
  if (found == running_.end()) return;
  running_.erase(found);
  ++stats_.operations;
}

// Operations are started and nearly always finish in order, so the search ends at once.
std::vector<Executor::Running>::iterator Executor::by_number(std::uint64_t number) {
  const auto found = std::lower_bound(
      running_.begin(), running_.end(), number,
      [](const Running& running, std::uint64_t n) { return running.number < n; });
  return found != running_.end() && found->number == number ? found : running_.end();
}

void Executor::post(Running& running, Operation::MessageId message) {
  Operation& operation = *running.operation;
  const LocalTransfer& t = operation.transfer(message);
  const ByteRange range = operation.range(message);
  operation.touch(message);
  regions_.clear();
  operation.layout().append_regions(range, regions_);
  Frame frame;
  frame.kind = FrameKind::data;
  frame.transfer = t.id;
  frame.cell = operation.cell(message);
  frame.key = operation.key();
  frame.fingerprint = operation.spec().fingerprint;
  frame.payload_bytes = static_cast<std::uint64_t>(operation.layout().payload_bytes(range));
  frame.may_lend = !t.swaps;
  frame.operation_bytes = static_cast<std::uint64_t>(
      operation.edges()[static_cast<std::size_t>(t.peer)].send_bytes);
  frame.in_place = operation.in_place(message);
  if (frame.in_place) regions_.clear();
  PeerStats& stats = stats_.peers[static_cast<std::size_t>(t.peer)];
  ++stats.messages_sent;
  stats.bytes_sent += static_cast<std::int64_t>(frame.payload_bytes);
  const std::uint64_t ticket = (running.number << kMessageBits) | message;
  if (transport_.send(t.peer, frame, regions_, ticket)) operation.complete(message);
}

void Executor::announce(int peer, const Operation& operation, std::chrono::milliseconds again) {
  Frame frame;
  frame.kind = FrameKind::start;
  frame.cell = static_cast<std::uint32_t>(again.count());
  frame.key = operation.key();
  frame.fingerprint = operation.spec().fingerprint;
  ++stats_.control_messages;
  transport_.send_control(peer, frame, operation.shape()->words());
}

void Executor::request(int peer, const std::string& name, std::int64_t version) {
  Frame frame;
  frame.kind = FrameKind::request;
  frame.key.sequence = static_cast<std::uint64_t>(version);
  ++stats_.control_messages;
  transport_.send_control(peer, frame, name);
}

void Executor::announce_stall(const Operation& operation, std::chrono::milliseconds again) {
  for (std::size_t p = 0; p < peers_.size(); ++p) {
    const int peer = static_cast<int>(p);
    if (peer != rank_ && operation.edges()[p].member && !peers_[p].departed &&
        !transport_.congested(peer)) {
      announce(peer, operation, again);
    }
  }
}

std::string Executor::explain(const Operation& operation, Clock::time_point now,
                              std::chrono::milliseconds pause) const {
  std::vector<int> silent;
  std::vector<int> elsewhere;
  std::string other;
  for (std::size_t p = 0; p < peers_.size(); ++p) {
    const Edge& edge = operation.edges()[p];
    if (static_cast<int>(p) == rank_ || !edge.member) continue;
    const auto known = peers_[p].pause.count() > 0 ? peers_[p].pause : pause;
    if (now - peers_[p].heard > known * 5 / 2) {
      silent.push_back(static_cast<int>(p));
    } else if (!edge.started && !peers_[p].last_start.empty() &&
               peers_[p].last_start != operation.shape()->words()) {
      elsewhere.push_back(static_cast<int>(p));
      other += "; " + rank_name(static_cast<int>(p)) + " was last in " + peers_[p].last_start;
    }
  }
  std::string text = "waiting for ranks " + list(operation.waits_for());
  if (!silent.empty()) text += "; no sign of life from ranks " + list(silent);
  if (!elsewhere.empty()) text += "; missing ranks: " + list(elsewhere) + other;
  return text;
}

// Messages of one operation follow each other, so the one found last is tried first.
Executor::Running* Executor::find(const OpKey& key) {
  if (found_last_ < running_.size() && running_[found_last_].operation->key() == key) {
    return &running_[found_last_];
  }
  for (std::size_t i = 0; i < running_.size(); ++i) {
    if (running_[i].operation->key() != key) continue;
    found_last_ = i;
    return &running_[i];
  }
  return nullptr;
}

bool Executor::finished_before(const OpKey& key) const {
  if (key.scope == 0) return key.sequence < next_unnamed_;
  return key.sequence < next_sequence_.next(key.scope);
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
      operation.key().scope == 0
          ? "unnamed operation " + std::to_string(operation.key().sequence)
          : "a named operation";
  const std::string mine = rank_name(rank_) + " called " + operation.shape()->words();
  const std::string theirs = rank_name(peer) + " called " + *text;
  die(ErrorCode::mismatch, "ranks disagree about " + which + ": " +
                               (rank_ < peer ? mine + ", " + theirs : theirs + ", " + mine));
  return false;
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
    for (Running& running : running_) running.operation->restore();
  }
  running_.clear();
  unexpected_.clear();
  arriving_.clear();
}

}  // namespace kf
