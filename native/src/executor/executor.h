// Runs operations over a transport: matches frames with operations, moves their bytes, and
// turns every disagreement, loss or protocol break into the one error the whole session dies
// of.
//
// Terms: unexpected: a data frame for an operation this rank has not started; only small ones
//        may come (Operation::Edge::gated), and they are kept until it does;
//        announcement: a start frame, i.e. "I have started this operation, and mean by it ...".
// Threads: used under the owner's lock only.
// Ownership: does not own the transport, which must outlive it.
//
// Death: the first error is final. It is sent to all peers at once as an abort frame, and
// passed on by those who receive it, so every rank raises it within moments. After bury()
// nobody touches the memory of the operations any more.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/operation.h"
#include "executor/sequences.h"
#include "kf/error.h"
#include "kf/stats.h"
#include "kf/transport.h"

namespace kf {

class Executor final : public FrameSink {
 public:
  Executor(Transport& transport, int rank, int world_size);

  // Starts an operation; its key's sequence is assigned here, the next one of its scope.
  std::shared_ptr<Operation> start(OperationSpec spec,
                                   std::shared_ptr<NormSums> norms = nullptr);
  // The same for one that was just restarted.
  void start(std::shared_ptr<Operation> operation);
  void progress();  // delivers what has arrived and sends what is ready; never blocks
  // Asks a peer for a model; it answers with messages.
  void request(int peer, const std::string& name, std::int64_t version);
  // What to do when a peer asks; may start operations.
  std::function<void(int peer, const Frame& frame, std::string_view name)> on_request;
  // Tells every peer which operation this rank is in. Called when an operation stalls, so that
  // ranks which wait in different operations learn of each other; `again`: when it will say so
  // next.
  void announce_stall(const Operation& operation, std::chrono::milliseconds again);
  // Why `operation` is not done, for the text of a deadline error. A rank counts as silent
  // after two and a half times the pause that it has told, or else `pause`.
  std::string explain(const Operation& operation, Clock::time_point now,
                      std::chrono::milliseconds pause) const;

  const std::optional<Error>& death() const noexcept { return death_; }
  void die(ErrorCode code, const std::string& text);  // the first call wins
  void leave();                                       // says goodbye; the session ends in order
  void bury(Clock::time_point until) noexcept;        // closes the transport, once

  const SessionStats& stats() const noexcept { return stats_; }

  bool begin(int peer, const Frame& frame, Delivery& delivery) noexcept override;
  std::size_t consume(Delivery& delivery, std::span<const std::byte> bytes) noexcept override;
  void finished(Delivery& delivery) noexcept override;
  void control(int peer, const Frame& frame, std::string_view text) noexcept override;
  void sent(std::uint64_t ticket) noexcept override;
  void lost(int peer, const std::string& reason) noexcept override;

 private:
  static constexpr int kMessageBits = 28;  // of a ticket, see Operation::kMaxMessages

  struct Announcement {
    std::uint64_t fingerprint;
    std::string text;
  };
  struct Unexpected {
    int peer;
    Frame frame;
    std::vector<std::byte> bytes;
  };
  struct Peer {
    bool departed = false;  // said bye
    Clock::time_point heard{};
    std::chrono::milliseconds
        pause{};  // after which it says again what it waits in; 0: unknown
    std::size_t unexpected_bytes = 0;
    std::map<OpKey, Announcement> announced;  // operations it started and this rank has not
    std::string last_start;                   // what it last said it has started
  };
  struct Running {
    std::shared_ptr<Operation> operation;
    std::uint64_t number;     // upper half of its tickets
    bool mismatched = false;  // a peer means something else; waiting for the abort
  };

  Running* find(const OpKey& key);
  std::vector<Running>::iterator by_number(std::uint64_t number);
  Peer& peer_at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
  bool finished_before(const OpKey& key) const;
  void advance(Running& running);  // sends and applies whatever is ready
  void post(Running& running, Operation::MessageId message);
  void accept(Running& running, const Unexpected& data);
  void refuse_departed(const Operation& operation);
  void take_waiting(Running& running);  // announcements and data that came before the start
  void announce(int peer, const Operation& operation, std::chrono::milliseconds again = {});
  bool agree(Running& running, int peer, std::uint64_t fingerprint, const std::string* text);
  void retire(std::uint64_t number);
  void on_start(int peer, const Frame& frame, std::string_view text);
  bool begin_unexpected(int peer, const Frame& frame, Delivery& delivery);
  bool begin_expected(Running& running, int peer, const Frame& frame, Delivery& delivery);
  void break_off(int peer, const std::string& what);  // a peer broke the protocol
  template <class Fn>
  bool guarded(Fn&& fn) noexcept;

  Transport& transport_;
  int rank_;
  std::vector<Peer> peers_;
  std::vector<Running> running_;  // ascending number: the order they were started in
  std::size_t found_last_ = 0;    // index of what find() returned
  std::uint64_t next_unnamed_ = 0;
  Sequences next_sequence_;  // of named operations, by scope
  std::map<OpKey, std::vector<Unexpected>> unexpected_;
  std::map<const void*, std::unique_ptr<Unexpected>>
      arriving_;  // unexpected, payload incomplete
  std::uint64_t next_number_ = 1;
  std::optional<Error> death_;
  bool buried_ = false;
  SessionStats stats_;
  std::vector<Region> regions_;
};

inline std::string rank_name(int rank) {
  return "rank " + std::to_string(rank);
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

}  // namespace kf
