// What a session is made of. Starting operations: start.cc; moving them on: drive.cc.
//
// Terms: driver: the thread that is in progress() or wait() of the transport, one at a time;
//        waiter: a caller inside wait(). A waiter drives; the session's own thread does so only
//        while there is none.
// Threads: one lock, `mutex_`, guards everything; it is not held while a driver sleeps.
#pragma once

#include <condition_variable>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "executor/executor.h"
#include "kf/error.h"
#include "kf/session.h"
#include "session/claims.h"
#include "session/fork_guard.h"
#include "session/model_store.h"
#include "session/pending.h"
#include "session/recipe.h"

namespace kf {

class Session::Impl {
 public:
  Impl(View view, int rank, std::unique_ptr<Transport> transport, SessionOptions options);
  ~Impl();

  const View& view() const noexcept { return view_; }
  int rank() const noexcept { return rank_; }
  const char* transport() const noexcept { return transport_->name(); }
  std::string schedule() const;
  void set_schedule(const std::string& spec);

  std::shared_ptr<const Group> group(std::vector<int> members);
  Handle start(Call call);
  Handle message(int peer, bool send, std::int64_t tag, Call call);
  void run(Collective collective, const std::vector<Piece>& pieces, int root,
           const std::string& name, Clock::time_point deadline, const Interrupt& interrupt,
           std::shared_ptr<NormSums> norms);
  void wait(const Handle& handle, Clock::time_point deadline, const Interrupt& interrupt);
  void save(const std::string& name, std::shared_ptr<const Model> model, int keep);
  std::shared_ptr<const Model> request(int peer, const std::string& name, std::int64_t version,
                                       Clock::time_point deadline, const Interrupt& interrupt);
  bool done(const Handle& handle);
  SessionStats stats() const;
  void close() noexcept;

 private:
  using Lock = std::unique_lock<std::mutex>;
  class Waiter;
  struct Asked {  // a peer's request for a model that is not here yet
    int peer;
    std::string name;
    std::int64_t version;
  };
  // Messages of models are told apart from the program's own by a scope of their own.
  static constexpr std::int64_t kModelTag = std::numeric_limits<std::int64_t>::min();

  void require_same_process() const;
  void check(const Call& call) const;
  int size_of(const Call& call) const noexcept;
  std::shared_ptr<const Plan> plan_for(const Call& call, const std::string& spec);
  std::string schedule_for(const Call& call) const;
  // Takes the call's root and group for its own; `call` must live as long as it is checked.
  OperationSpec message_spec(int peer, bool send, std::int64_t tag, Call& call);
  Handle begin(Call call, OperationSpec spec, bool buffered);
  Handle launch(Lock& lock, Call call, OperationSpec spec, bool buffered);
  Handle repeat(Lock& lock, const std::shared_ptr<const Recipe>& recipe,
                const std::vector<Piece>& pieces, std::shared_ptr<NormSums> norms);
  void remember(const Call& call, Pending& pending);
  bool may_run_ahead(int peer);
  template <class Words>
  void claim(const std::vector<MemorySpan>& spans, Words&& words);

  void drive(Lock& lock, const Pending* pending, Clock::time_point until);
  void watch_stall(Pending& pending, Clock::time_point deadline, Clock::time_point now);
  bool expire(const Pending& pending, Clock::time_point deadline, Clock::time_point now);
  void throw_if_dead(Lock& lock);
  void bury(Lock& lock) noexcept;
  bool answer(int peer, const std::string& name, std::int64_t version);
  Handle post_model(int peer, bool send, std::vector<Piece> pieces,
                    std::shared_ptr<const void> memory);
  void on_request(int peer, const Frame& frame, std::string_view name);
  void run_in_background(Lock& lock, const Handle& handle);
  void wake_thread(Lock& lock);
  void background() noexcept;
  void background_turn(Lock& lock);

  ForkGuard guard_;
  View view_;
  int rank_;
  SessionOptions options_;
  std::unique_ptr<Transport> transport_;
  Executor executor_;
  std::map<std::tuple<std::string, Collective, int, std::vector<int>>,
           std::shared_ptr<const Plan>>
      plans_;
  std::map<std::vector<int>, std::uint64_t> groups_made_;  // by members
  // by receiver: small messages that it is not known to have asked for
  std::map<int, std::deque<std::shared_ptr<Operation>>> ahead_;

  RecipeBook recipes_;
  Claims claims_;
  std::vector<Handle> spare_;  // done, and nobody else's: to be used again

  mutable std::mutex mutex_;
  std::condition_variable progressed_;  // a driver has moved something, or stopped driving
  bool driving_ = false;
  int waiters_ = 0;

  std::vector<Handle> in_background_;   // not done, as far as is known
  std::condition_variable background_;  // there is something to do for the session's thread
  std::unique_ptr<std::thread> thread_;
  bool thread_runs_ = false;
  bool thread_drives_ = false;

  ModelStore store_;
  std::vector<Asked> asked_;
  std::set<int> asking_;  // peers that a thread of this rank waits for a model from
  bool serving_ = false;  // peers may ask at any time
};

// Throws Error{usage} when an operation under way uses the same memory. `words` names the new
// one.
template <class Words>
void Session::Impl::claim(const std::vector<MemorySpan>& spans, Words&& words) {
  const Pending* other = claims_.conflict(spans);
  if (other == nullptr) return;
  throw Error(ErrorCode::usage, "rank " + std::to_string(rank_) + ": " + words() +
                                    " shares memory with " +
                                    other->operation->shape()->words() +
                                    ", which is still under way; wait for that one first");
}

}  // namespace kf
