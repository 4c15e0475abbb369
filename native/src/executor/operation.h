// One collective under way on one rank: which messages have been sent, which have been applied,
// and which may go next. No I/O: the Executor moves the bytes it names.
//
// Terms: message: one cell of one local transfer; ready: all its predecessors in that cell are
//        done; early: arrived before it was ready, and held in a buffer of its own.
// Threads: used under the owner's lock only.
// Ownership: the caller's memory (Layout) must outlive the operation.
//
// Messages form a graph: a message waits for the messages of its transfer's predecessors (Plan)
// in the same cell. Cells are independent of each other; that is what pipelines a large buffer
// through many rounds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "executor/layout.h"
#include "executor/norms.h"
#include "executor/plan.h"
#include "kf/transport.h"

namespace kf {

struct OperationSpec {
  OpKey key;  // its scope; the sequence is given when an operation starts
  std::uint64_t fingerprint = 0;
  std::function<std::string()> describe;  // the fingerprint in words, made only when needed
  std::shared_ptr<const Plan> plan;
  std::vector<Piece> pieces;
  std::int64_t eager_bytes = 0;      // largest payload sent to a rank that has not started yet
  std::int64_t cell_bytes = 0;       // pitch of the grid, a multiple of 16
  int peers = 0;                     // ranks in the view
  std::vector<std::int64_t> blocks;  // elements each owner has; empty: equally many
  bool restorable = true;  // put the buffer back as it was when the session dies early
  std::shared_ptr<const void> memory;  // kept alive until the operation is over
};

// What an operation has to do with one other rank.
struct Edge {
  std::int64_t send_bytes = 0;
  std::int64_t sends_left = 0;
  std::int64_t receive_bytes = 0;
  std::int64_t receives_left = 0;
  bool started = false;               // the peer is known to have started this operation
  bool gated = false;                 // send nothing before it has
  bool await_start = false;           // the operation is not complete before it has
  bool announce = false;              // the peer waits for our start frame
  bool member = false;                // the peer takes part
  std::vector<std::uint64_t> parked;  // ready to be sent, once the peer has started
};

// Everything about an operation that does not depend on where its memory lies, so that it is
// worked out once and used for all operations with the same meaning. Immutable, but for the
// words that are found when they are first needed.
class OperationShape {
 public:
  using MessageId = std::uint64_t;
  static constexpr MessageId kMaxMessages = MessageId{1} << 28;  // of one operation

  struct Cells {  // the messages of one local transfer
    ByteRange range;
    std::uint32_t first_cell = 0;
    std::uint32_t count = 0;
    MessageId base = 0;
  };

  // Throws Error{usage} when there are too many messages, or pieces that no Layout takes.
  explicit OperationShape(OperationSpec spec);

  const OperationSpec& spec() const noexcept { return spec_; }
  const std::string& words() const;                       // spec().describe(), made once
  const std::shared_ptr<const NormShape>& norms() const;  // likewise

 private:
  friend class Operation;
  void cut();
  void count_predecessors();
  void open_edges();
  std::uint32_t cell(MessageId message) const noexcept {
    const Cells& cells = cells_[transfer_of_[message]];
    return cells.first_cell + static_cast<std::uint32_t>(message - cells.base);
  }
  template <class Fn>
  void for_successors(MessageId message, Fn&& fn) const;

  OperationSpec spec_;
  Layout layout_;
  std::vector<Cells> cells_;                // by local transfer
  std::vector<std::uint32_t> transfer_of_;  // by message
  std::vector<std::uint32_t> waiting_;      // by message: number of predecessors
  std::vector<MessageId> ready_;            // messages without predecessors
  std::vector<Edge> edges_;                 // by rank
  std::int64_t starts_ = 0;                 // ranks whose start must be heard of
  mutable std::string words_;
  mutable std::shared_ptr<const NormShape> norms_;
};

class Operation {
 public:
  using MessageId = OperationShape::MessageId;
  static constexpr MessageId kNone = ~MessageId{0};
  static constexpr MessageId kMaxMessages = OperationShape::kMaxMessages;

  explicit Operation(std::shared_ptr<const OperationShape> shape);
  // Begins on other memory, as often as wanted once done: no memory is allocated any more.
  void restart(std::span<const Piece> pieces);
  void set_key(const OpKey& key) noexcept { key_ = key; }
  // Sums squares from now on, an all-reduce's; between restart() and the start.
  void measure(std::shared_ptr<NormSums> norms);

  const std::shared_ptr<const OperationShape>& shape() const noexcept { return shape_; }
  const OperationSpec& spec() const noexcept { return shape_->spec(); }
  const OpKey& key() const noexcept { return key_; }
  const Layout& layout() const noexcept { return layout_; }
  std::vector<Edge>& edges() noexcept { return edges_; }
  const std::vector<Edge>& edges() const noexcept { return edges_; }
  bool done() const noexcept { return messages_left_ == 0 && starts_left_ == 0; }
  // The caller's memory is free: everything was sent and applied.
  bool moved() const noexcept { return messages_left_ == 0; }
  Clock::time_point finished_at() const noexcept { return finished_at_; }
  bool needs(int peer) const noexcept;
  std::vector<int> waits_for() const;  // ranks with something still to come from them

  // Messages that have become ready and were not taken yet; kNone when there is none.
  MessageId take_ready();
  // Before the caller's elements of a message are first read or written over.
  void touch(MessageId message) {
    if (norms_ != nullptr) touch_norms(message);
  }
  void complete(MessageId message);  // sent, or applied
  void peer_started(int peer);

  // kNone when this rank expects no such message.
  MessageId find(int peer, std::uint32_t transfer, std::uint32_t cell) const noexcept;
  const LocalTransfer& transfer(MessageId message) const noexcept;
  ByteRange range(MessageId message) const noexcept;
  std::uint32_t cell(MessageId message) const noexcept { return shape_->cell(message); }
  bool ready(MessageId message) const noexcept { return waiting_[message] == 0; }
  // Marks the arrival of a message; false when it has arrived before.
  bool arrive(MessageId message) noexcept;
  void received(MessageId message) noexcept;  // its whole payload is here, applied or held

  // Early messages: memory for the payload, valid until it is taken; then its bytes.
  std::span<std::byte> hold(MessageId message, std::size_t bytes);
  bool holding(MessageId message) const { return early_.contains(message); }
  void fill(MessageId message) { arrived_[message] = kHeld; }  // the payload is complete
  bool filled(MessageId message) const noexcept { return arrived_[message] == kHeld; }
  void apply_held(MessageId message);
  // The result of this receive was written into the peer's memory: its way back needs no
  // payload any more.
  void mark_returned(MessageId message) noexcept;
  bool in_place(MessageId message) const noexcept { return arrived_[message] == kInPlace; }

  // Combines a prefix of `bytes`, the payload of `message` from byte `skip` on, into the
  // buffer; returns how many bytes were taken: all but an incomplete last element.
  std::size_t apply(MessageId message, std::int64_t skip, std::span<const std::byte> bytes);

  void finish();   // once done: what is left of averaging
  void restore();  // puts the caller's memory back as it was, where a copy was kept

 private:
  static constexpr std::uint8_t kArrived = 1;
  static constexpr std::uint8_t kHeld = 2;
  static constexpr std::uint8_t kTaken = 3;
  static constexpr std::uint8_t kInPlace = 4;  // a send

  void keep_copy();
  void touch_norms(MessageId message);
  void divide_rest();

  std::shared_ptr<const OperationShape> shape_;
  OpKey key_;
  Layout layout_;
  std::vector<std::uint32_t> waiting_;  // by message: predecessors not done
  std::vector<std::uint8_t> arrived_;   // by message: 0 or one of the above
  std::vector<Edge> edges_;             // by rank
  std::vector<MessageId> ready_;        // from taken_ on
  std::size_t taken_ = 0;
  std::unordered_map<MessageId, std::vector<std::byte>> early_;
  std::vector<std::byte> copy_;
  std::shared_ptr<NormSums> norms_;  // null: nobody wants them
  std::shared_ptr<NormPart> part_;   // what of it is this operation's
  std::int64_t words_begin_ = 0;     // offset of what NormSums::words() points at
  std::int64_t messages_left_ = 0;
  std::int64_t starts_left_ = 0;
  Clock::time_point finished_at_{};
};

}  // namespace kf
