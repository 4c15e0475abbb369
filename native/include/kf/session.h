// Collectives over exactly one view: what callers use. Blocking calls and handles to wait for.
//
// Terms: named operation: matched with the peers' operation of the same name, whatever the
// order;
//        unnamed ones are matched by the order in which they were started.
// Threads: every call may be made by any thread. The waiting caller itself drives the
// transport;
//        an idle session uses no CPU. One lock guards all state and is never held while
//        blocking.
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
#include <vector>

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
  // Blocks until the operation is done. Throws Error{deadline} naming the ranks waited for,
  // Error{mismatch}, Error{peer_lost}, Error{aborted}; the session is dead then.
  void wait(const Handle& handle, Clock::time_point deadline, const Interrupt& interrupt = {});
  bool done(const Handle& handle) const;
  void run(Collective collective, std::vector<Piece> pieces, int root, const std::string& name,
           Clock::time_point deadline, const Interrupt& interrupt = {});

  SessionStats stats() const;
  void close() noexcept;  // says goodbye to the peers; harmless when closed or dead

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kf
