// Collectives over exactly one view: what callers use. Blocking calls and handles to wait for.
//
// Terms: named operation: matched with the peers' operation of the same name, whatever the
// order;
//        unnamed ones are matched by the order in which they were started.
//        group: some ranks of the view, with operations of their own over the same connections;
//        background operation: one that goes on while nobody waits for it.
// Threads: every call may be made by any thread. The waiting caller itself drives the
//        transport; while there are background operations and nobody waits, a thread of the
//        session does, and there is none otherwise. An idle session uses no CPU. One lock
//        guards all state and is never held while blocking.
// Ownership: owns its transport. Memory in pieces belongs to the caller and must stay valid and
//        untouched until the operation is done; a call that throws has let go of it.
//
// A session that failed is dead: every later call throws the same error. A mismatch between
// ranks kills it too: ranks that disagree about one operation do not agree about the next.
// In a child made by fork() every call throws Error{usage}, and the parent's session lives on.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kf/norm.h"
#include "kf/schedule.h"
#include "kf/stats.h"
#include "kf/transport.h"
#include "kf/types.h"
#include "kf/view.h"

namespace kf {

struct SessionOptions {
  std::string schedule = "ring";         // spec of the schedule, see kf/generators.h
  std::int64_t eager_bytes = 64 * 1024;  // largest payload sent to a rank before it has started
  std::int64_t segment_bytes = 256 * 1024;  // pitch of pipelining; a positive multiple of 16
};

// Some ranks of a view. Made by Session::group.
struct Group {
  std::vector<int> members;  // rank in the view of each rank of the group
  int rank = 0;              // this rank's place in `members`
  std::uint64_t scope = 0;   // of the group's unnamed operations, see OpKey
};

// What is asked of a session. Only the first two fields are needed.
struct Call {
  Collective collective = Collective::all_reduce;
  std::vector<Piece> pieces;
  int root = 0;  // rank within the group
  std::string name;
  std::shared_ptr<const Group> group;  // null: all ranks
  // Elements each owner has, for the collectives whose chunks are owned; empty: equally many.
  std::vector<std::int64_t> blocks;
  bool sparse = false;      // all_to_all: blocks of other ranks have no memory here
  std::string site;         // where the program calls; ranks must agree when it is given
  bool background = false;  // goes on while nobody waits; `deadline` holds without a waiter
  Clock::time_point deadline = Clock::time_point::max();
  std::shared_ptr<NormSums> norms;  // of an all-reduce: sums squares; null: it does not
};

// A copy of some arrays that peers may ask for. Never changes once it is saved.
struct Model {
  static constexpr std::int64_t kNewest = -1;  // asks for any version
  static constexpr std::size_t kAlign = 64;    // every array begins at a multiple of it, bytes

  Model(std::int64_t number, std::string text, std::size_t size);

  std::int64_t version;     // >= 0
  std::string description;  // the caller's own, e.g. types and shapes
  std::unique_ptr<std::byte[]> bytes;
  std::size_t byte_count;
};
// Throws Error{usage} for a negative version.
std::shared_ptr<const Model> copy_model(std::int64_t version, std::string description,
                                        const std::vector<Piece>& pieces);

// The all_to_all that takes blocks from one buffer and puts them into another. `counts` has the
// elements each rank has for each other, [source * n + destination], and is the same on all n
// ranks; `input` holds this rank's blocks by destination, `output` gets them by source. This
// rank's block for itself is copied at once.
// Throws Error{usage} for a wrong number of counts, or a negative one.
Call exchange(const void* input, void* output, DType dtype, std::vector<std::int64_t> counts,
              int rank, int world_size);

class Session {
 public:
  class Pending;  // an operation under way
  using Handle = std::shared_ptr<Pending>;
  // Asked from time to time while a call blocks; true makes it give up (and kills the session).
  using Interrupt = std::function<bool()>;

  // Throws Error{usage} for a rank outside the view or a bad option.
  Session(View view, int rank, std::unique_ptr<Transport> transport,
          SessionOptions options = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const View& view() const noexcept;
  int rank() const noexcept;
  int world_size() const noexcept;
  std::string schedule() const;
  const char* transport() const noexcept;  // "inproc", "shm", "tcp", "shm+tcp"
  // Takes effect for operations started later; call it at the same point on every rank.
  // Throws Error{usage} for an unknown spec.
  void set_schedule(const std::string& spec);

  // Starts a collective on the concatenation of `pieces`, in place. For what stands in the
  // buffer before and after see kf/schedule.h; for the collectives with owned chunks the number
  // of units must be a multiple of the number of owners.
  // Throws Error{usage} for operators without meaning, and the session's error when it is dead.
  Handle start(Collective collective, std::vector<Piece> pieces, int root = 0,
               const std::string& name = {});
  Handle start(Call call);

  // The group of these ranks, in this order. Takes no message: only its members call it, and
  // groups of the same members are told apart by the order in which they are made.
  // Throws Error{usage} unless the ranks are different ones of the view, this one among them.
  std::shared_ptr<const Group> group(std::vector<int> members);

  // One message from a rank to another. Messages of one sender, receiver and tag are matched in
  // order, and must agree in types and counts. A send of up to eager_bytes is done before the
  // receiver has started; at most 256 such messages are on their way.
  // `call` gives pieces, group, background and deadline; `peer` is a rank of that group.
  Handle send(int peer, std::int64_t tag, Call call);
  Handle receive(int peer, std::int64_t tag, Call call);

  // Keeps a model for peers to ask for, and the newest `keep` versions of its name. From then
  // on a thread answers them while this rank computes. Throws Error{usage} unless versions
  // grow.
  void save(const std::string& name, std::shared_ptr<const Model> model, int keep);
  // The model that a peer has saved under `name`: of this version, or the newest. Waits for one
  // that has not been saved yet; null: this version is gone, or was left out. Of this rank's
  // own store nothing is waited for.
  std::shared_ptr<const Model> request(int peer, const std::string& name, std::int64_t version,
                                       Clock::time_point deadline,
                                       const Interrupt& interrupt = {});

  // Blocks until the operation is done. Throws Error{deadline} naming the ranks waited for,
  // Error{mismatch}, Error{peer_lost}, Error{aborted}; the session is dead then.
  void wait(const Handle& handle, Clock::time_point deadline, const Interrupt& interrupt = {});
  bool done(const Handle& handle) const;  // wait() would not block
  // When the operation started, and when it was done; the same where it is not.
  static std::pair<Clock::time_point, Clock::time_point> times(const Handle& handle);
  // Starts and waits. Repeated with the same types and counts it allocates nothing.
  void run(Collective collective, const std::vector<Piece>& pieces, int root,
           const std::string& name, Clock::time_point deadline, const Interrupt& interrupt = {},
           std::shared_ptr<NormSums> norms = nullptr);

  SessionStats stats() const;
  void close() noexcept;  // says goodbye to the peers; harmless when closed or dead

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kf
