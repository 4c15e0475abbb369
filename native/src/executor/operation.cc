#include "executor/operation.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "executor/combine.h"
#include "kf/error.h"

namespace kf {

namespace {

bool rooted(Collective collective) {
  switch (collective) {
    case Collective::reduce:
    case Collective::broadcast:
    case Collective::gather:
    case Collective::scatter:
      return true;
    case Collective::all_reduce:
    case Collective::reduce_scatter:
    case Collective::all_gather:
    case Collective::all_to_all:
    case Collective::barrier:
      return false;
  }
  return false;
}

}  // namespace

OperationShape::OperationShape(OperationSpec spec)
    : spec_(std::move(spec)),
      layout_(spec_.pieces, spec_.blocks),
      edges_(static_cast<std::size_t>(spec_.peers)) {
  cut();
  count_predecessors();
  open_edges();
}

const std::shared_ptr<const NormShape>& OperationShape::norms() const {
  if (norms_ == nullptr) {
    norms_ = std::make_shared<NormShape>(layout_, spec_.plan->schedule, spec_.cell_bytes);
  }
  return norms_;
}

const std::string& OperationShape::words() const {
  if (words_.empty()) words_ = spec_.describe();
  return words_;
}

// Cuts every local transfer along the grid. In an empty buffer every transfer is one empty
// message, so that ranks still meet; in any other, transfers without elements do not exist.
void OperationShape::cut() {
  const Plan& plan = *spec_.plan;
  const bool empty = layout_.bytes() == 0;
  MessageId next = 0;
  for (const LocalTransfer& t : plan.transfers) {
    Cells cells;
    cells.range = layout_.chunks(plan.schedule, t.chunk_begin, t.chunk_count);
    cells.base = next;
    if (empty) {
      cells.count = 1;
    } else if (!cells.range.empty()) {
      cells.first_cell = static_cast<std::uint32_t>(cells.range.begin / spec_.cell_bytes);
      cells.count = static_cast<std::uint32_t>((cells.range.end - 1) / spec_.cell_bytes) + 1 -
                    cells.first_cell;
    }
    next += cells.count;
    transfer_of_.insert(transfer_of_.end(), cells.count,
                        static_cast<std::uint32_t>(cells_.size()));
    cells_.push_back(cells);
  }
  if (next >= kMaxMessages) {
    throw Error(ErrorCode::usage, "an operation has less than 2^28 messages, this one has " +
                                      std::to_string(next));
  }
  waiting_.assign(next, 0);
}

template <class Fn>
void OperationShape::for_successors(MessageId message, Fn&& fn) const {
  const std::uint32_t at = cell(message);
  for (const std::uint32_t s : spec_.plan->transfers[transfer_of_[message]].successors) {
    const Cells& cells = cells_[s];
    if (at >= cells.first_cell && at - cells.first_cell < cells.count) {
      fn(cells.base + (at - cells.first_cell));
    }
  }
}

void OperationShape::count_predecessors() {
  for (MessageId m = 0; m < waiting_.size(); ++m) {
    for_successors(m, [&](MessageId successor) { ++waiting_[successor]; });
  }
  for (MessageId m = 0; m < waiting_.size(); ++m) {
    if (waiting_[m] == 0) ready_.push_back(m);
  }
}

void OperationShape::open_edges() {
  const std::vector<int>& members = spec_.plan->members;
  for (const int member : members) edges_[static_cast<std::size_t>(member)].member = true;
  for (std::size_t t = 0; t < cells_.size(); ++t) {
    const LocalTransfer& transfer = spec_.plan->transfers[t];
    Edge& edge = edges_[static_cast<std::size_t>(transfer.peer)];
    const std::int64_t bytes = layout_.payload_bytes(cells_[t].range);
    (transfer.is_send ? edge.send_bytes : edge.receive_bytes) += bytes;
    (transfer.is_send ? edge.sends_left : edge.receives_left) += cells_[t].count;
  }
  // A rank must not return success from an operation that another one understood differently.
  // In the symmetric collectives data of everyone must arrive before a rank is done; in the
  // rooted ones a mere sender waits until the receiver has said that it takes part.
  const bool acknowledge = rooted(spec_.plan->schedule.collective);
  for (Edge& edge : edges_) {
    edge.member = edge.member || members.empty();
    edge.gated = edge.send_bytes > spec_.eager_bytes;
    edge.await_start = edge.sends_left > 0 && (edge.gated || acknowledge);
    edge.announce =
        edge.receives_left > 0 && (edge.receive_bytes > spec_.eager_bytes || acknowledge);
    if (edge.await_start) ++starts_;
  }
}

Operation::Operation(std::shared_ptr<const OperationShape> shape)
    : shape_(std::move(shape)), layout_(shape_->layout_) {}

void Operation::restart(std::span<const Piece> pieces) {
  layout_.rebind(pieces);
  waiting_ = shape_->waiting_;
  arrived_.assign(waiting_.size(), 0);
  edges_ = shape_->edges_;
  ready_ = shape_->ready_;
  taken_ = 0;
  early_.clear();
  messages_left_ = static_cast<std::int64_t>(waiting_.size());
  starts_left_ = shape_->starts_;
  norms_.reset();
  part_.reset();
  keep_copy();
}

void Operation::measure(std::shared_ptr<NormSums> norms) {
  norms_ = std::move(norms);
  part_ = std::make_shared<NormPart>(shape_->norms(), layout_);
  norms_->add(part_);
  words_begin_ = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < layout_.pieces().size(); ++i) {
    if (norms_->wants_local() && layout_.pieces()[i].data == norms_->words()) {
      words_begin_ = layout_.offset(i);
    }
  }
}

void Operation::touch_norms(MessageId message) {
  if (!norms_->wants_local()) return;
  const ByteRange where = range(message);
  part_->count_local(where);
  if (where.end > words_begin_) norms_->tell();
}

void Operation::keep_copy() {
  copy_.clear();
  if (!shape_->spec_.restorable || layout_.bytes() > shape_->spec_.eager_bytes) return;
  for (const Piece& piece : layout_.pieces()) {
    const auto* from = static_cast<const std::byte*>(piece.data);
    if (from == nullptr) continue;
    copy_.insert(copy_.end(), from, from + piece.count * element_bytes(piece.dtype));
  }
}

void Operation::restore() {
  std::size_t at = 0;
  if (copy_.empty()) return;
  for (const Piece& piece : layout_.pieces()) {
    const auto bytes = static_cast<std::size_t>(piece.count * element_bytes(piece.dtype));
    if (bytes > 0) std::memcpy(piece.data, copy_.data() + at, bytes);
    at += bytes;
  }
}

bool Operation::needs(int peer) const noexcept {
  const Edge& edge = edges_[static_cast<std::size_t>(peer)];
  return edge.sends_left > 0 || edge.receives_left > 0 || (edge.await_start && !edge.started);
}

std::vector<int> Operation::waits_for() const {
  std::vector<int> ranks;
  for (std::size_t p = 0; p < edges_.size(); ++p) {
    const Edge& edge = edges_[p];
    if (edge.receives_left > 0 || (edge.await_start && !edge.started)) {
      ranks.push_back(static_cast<int>(p));
    }
  }
  if (!ranks.empty()) return ranks;
  for (std::size_t p = 0; p < edges_.size(); ++p) {
    if (edges_[p].sends_left > 0) ranks.push_back(static_cast<int>(p));
  }
  return ranks;
}

Operation::MessageId Operation::take_ready() {
  if (taken_ < ready_.size()) return ready_[taken_++];
  ready_.clear();
  taken_ = 0;
  return kNone;
}

void Operation::complete(MessageId message) {
  const LocalTransfer& t = transfer(message);
  if (t.is_send) --edges_[static_cast<std::size_t>(t.peer)].sends_left;
  if (norms_ != nullptr && t.settles && !shape_->spec_.plan->divide_at_end) {
    part_->count_result(range(message));
  }
  --messages_left_;
  shape_->for_successors(message, [&](MessageId successor) {
    if (--waiting_[successor] == 0) ready_.push_back(successor);
  });
}

void Operation::peer_started(int peer) {
  Edge& edge = edges_[static_cast<std::size_t>(peer)];
  if (edge.started) return;
  edge.started = true;
  if (edge.await_start) --starts_left_;
  ready_.insert(ready_.end(), edge.parked.begin(), edge.parked.end());
  edge.parked.clear();
}

Operation::MessageId Operation::find(int peer, std::uint32_t transfer_id,
                                     std::uint32_t at) const noexcept {
  const auto& transfers = shape_->spec_.plan->transfers;
  const auto found =
      std::lower_bound(transfers.begin(), transfers.end(), transfer_id,
                       [](const LocalTransfer& t, std::uint32_t id) { return t.id < id; });
  if (found == transfers.end() || found->id != transfer_id || found->is_send ||
      found->peer != peer) {
    return kNone;
  }
  const auto& cells = shape_->cells_[static_cast<std::size_t>(found - transfers.begin())];
  if (at < cells.first_cell || at - cells.first_cell >= cells.count) return kNone;
  return cells.base + (at - cells.first_cell);
}

const LocalTransfer& Operation::transfer(MessageId message) const noexcept {
  return shape_->spec_.plan->transfers[shape_->transfer_of_[message]];
}

ByteRange Operation::range(MessageId message) const noexcept {
  const auto& cells = shape_->cells_[shape_->transfer_of_[message]];
  const std::int64_t grid = static_cast<std::int64_t>(cell(message)) * shape_->spec_.cell_bytes;
  return {std::max(cells.range.begin, grid),
          std::min(cells.range.end, grid + shape_->spec_.cell_bytes)};
}

bool Operation::arrive(MessageId message) noexcept {
  if (arrived_[message] != 0) return false;
  arrived_[message] = kArrived;
  return true;
}

void Operation::received(MessageId message) noexcept {
  --edges_[static_cast<std::size_t>(transfer(message).peer)].receives_left;
}

std::span<std::byte> Operation::hold(MessageId message, std::size_t bytes) {
  std::vector<std::byte>& buffer = early_[message];
  buffer.resize(bytes);
  return buffer;
}

void Operation::apply_held(MessageId message) {
  apply(message, 0, early_.at(message));
  early_.erase(message);
  arrived_[message] = kTaken;
}

void Operation::mark_returned(MessageId message) noexcept {
  const auto back = static_cast<std::size_t>(transfer(message).returned_by);
  const auto& cells = shape_->cells_[back];
  arrived_[cells.base + (cell(message) - cells.first_cell)] = kInPlace;
}

std::size_t Operation::apply(MessageId message, std::int64_t skip,
                             std::span<const std::byte> bytes) {
  if (skip == 0) touch(message);
  const LocalTransfer& t = transfer(message);
  const ByteRange where = range(message);
  const bool divide_now = t.completes && !shape_->spec_.plan->divide_at_end;
  const int world_size = shape_->spec_.plan->schedule.world_size;
  std::size_t taken = 0;
  while (taken < bytes.size()) {
    const Elements to = layout_.elements_at(where, skip + static_cast<std::int64_t>(taken));
    const std::int64_t size = element_bytes(to.dtype);
    const std::int64_t count =
        std::min(to.count, static_cast<std::int64_t>(bytes.size() - taken) / size);
    if (count == 0) break;
    const std::byte* from = bytes.data() + taken;
    if (t.combine == Combine::replace) {
      std::memcpy(to.data, from, static_cast<std::size_t>(count * size));
    } else {
      combine(to.dtype, to.op, to.data, from, count, t.peer < shape_->spec_.plan->self);
      if (divide_now && to.op == ReduceOp::avg) divide(to.dtype, to.data, count, world_size);
    }
    taken += static_cast<std::size_t>(count * size);
  }
  return taken;
}

void Operation::finish() {
  finished_at_ = Clock::now();
  if (norms_ != nullptr && words_begin_ < layout_.bytes()) norms_->tell();  // a world of one
  divide_rest();
  if (norms_ == nullptr) return;
  part_->result();  // whatever no message has settled
  norms_.reset();
}

void Operation::divide_rest() {
  if (!shape_->spec_.plan->divide_at_end) return;
  for (const Piece& piece : layout_.pieces()) {
    if (piece.op != ReduceOp::avg) continue;
    divide(piece.dtype, static_cast<std::byte*>(piece.data), piece.count,
           shape_->spec_.plan->schedule.world_size);
  }
}

}  // namespace kf
