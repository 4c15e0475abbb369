#include "kf/session.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <tuple>

#include "executor/combine.h"
#include "executor/executor.h"
#include "kf/generators.h"
#include "session/fingerprint.h"
#include "session/fork_guard.h"
#include "session/select.h"

namespace kf {

namespace {

using std::chrono::milliseconds;

constexpr auto kSlice = milliseconds(50);          // longest sleep between looks at the caller
constexpr auto kFirstStall = milliseconds(50);     // when a rank first says what it waits in
constexpr auto kStallRepeat = milliseconds(1000);  // and how often it says so again
constexpr auto kFarewell = milliseconds(1000);     // longest time to hand over the last frames

// 16-bit floats are summed and multiplied as 32-bit ones from the first rank to the last:
// partial results neither overflow nor lose digits on the way.
bool needs_widening(const Piece& piece) {
  const bool half = piece.dtype == DType::f16 || piece.dtype == DType::bf16;
  return half && piece.op != ReduceOp::min && piece.op != ReduceOp::max;
}

}  // namespace

class Session::Pending {
 public:
  std::shared_ptr<Operation> operation;
  std::vector<Piece> narrow;             // the caller's pieces that were widened
  std::vector<std::vector<float>> wide;  // what is reduced instead of them
  std::string words;
  Clock::time_point started{};
  Clock::time_point announced{};
  bool finished = false;

  Piece widen_piece(const Piece& piece) {
    wide.emplace_back(static_cast<std::size_t>(piece.count));
    narrow.push_back(piece);
    widen(piece.dtype, static_cast<const std::byte*>(piece.data), wide.back().data(),
          piece.count);
    return {wide.back().data(), piece.count, DType::f32, piece.op};
  }

  void finish() {
    if (finished) return;
    finished = true;
    for (std::size_t i = 0; i < narrow.size(); ++i) {
      kf::narrow(narrow[i].dtype, wide[i].data(), static_cast<std::byte*>(narrow[i].data),
                 narrow[i].count);
    }
    wide.clear();
  }
};

class Session::Impl {
 public:
  Impl(View view, int rank, std::unique_ptr<Transport> transport, SessionOptions options)
      : view_(std::move(view)),
        rank_(rank),
        options_(std::move(options)),
        transport_(std::move(transport)),
        executor_(*transport_, rank, view_.world_size()) {
    set_schedule(options_.schedule);
  }

  ~Impl() {
    // closing would hang up the connections of the process that this one was forked from
    if (!guard_.same_process()) static_cast<void>(transport_.release());
    close();
  }

  const View& view() const noexcept { return view_; }
  int rank() const noexcept { return rank_; }
  const char* transport() const noexcept { return transport_->name(); }

  std::string schedule() const {
    const std::lock_guard lock(mutex_);
    return options_.schedule;
  }

  void set_schedule(const std::string& spec) {
    check_spec(spec, view_.world_size());
    const std::lock_guard lock(mutex_);
    options_.schedule = spec;
  }

  Handle start(Collective collective, std::vector<Piece> pieces, int root,
               const std::string& name);
  void wait(const Handle& handle, Clock::time_point deadline, const Interrupt& interrupt);

  bool done(const Handle& handle) {
    const std::lock_guard lock(mutex_);
    if (handle->operation->done()) handle->finish();
    return handle->finished;
  }

  SessionStats stats() const {
    const std::lock_guard lock(mutex_);
    return executor_.stats();
  }

  void close() noexcept {
    if (!guard_.same_process()) return;
    std::unique_lock lock(mutex_);
    executor_.leave();
    bury(lock);
  }

 private:
  void require_same_process() const {
    if (guard_.same_process()) return;
    throw Error(ErrorCode::usage,
                "this session belongs to the process that this one was forked from; open "
                "another one here");
  }
  void check(Collective collective, const std::vector<Piece>& pieces, int root) const;
  std::shared_ptr<const Plan> plan_for(Collective collective, const std::vector<Piece>& pieces,
                                       int root);
  void drive(std::unique_lock<std::mutex>& lock, const Pending& pending,
             Clock::time_point until);
  void watch_stall(Pending& pending, Clock::time_point now);
  void throw_if_dead(std::unique_lock<std::mutex>& lock);
  void bury(std::unique_lock<std::mutex>& lock) noexcept;

  ForkGuard guard_;
  View view_;
  int rank_;
  SessionOptions options_;
  std::unique_ptr<Transport> transport_;
  Executor executor_;
  std::map<std::tuple<std::string, Collective, int>, std::shared_ptr<const Plan>> plans_;
  mutable std::mutex mutex_;
  std::condition_variable progressed_;
  bool driving_ = false;  // some thread is in progress() or wait() of the transport
};

void Session::Impl::check(Collective collective, const std::vector<Piece>& pieces,
                          int root) const {
  if (has_root(collective) && (root < 0 || root >= view_.world_size())) {
    throw Error(ErrorCode::usage, "root must be in [0, " + std::to_string(view_.world_size()) +
                                      "), got " + std::to_string(root));
  }
  for (const Piece& piece : pieces) {
    if (reduces(collective)) require_reducible(piece.dtype, piece.op);
    if (piece.data == nullptr && piece.count > 0) {
      throw Error(ErrorCode::usage,
                  "a piece of " + std::to_string(piece.count) + " elements has no memory");
    }
  }
  const Layout layout(pieces);
  const int owners = owned_blocks(collective, view_.world_size());
  if (owners > 0 && layout.units() % owners != 0) {
    throw Error(ErrorCode::usage, std::string(to_string(collective)) +
                                      " needs a number of elements that is a multiple of " +
                                      std::to_string(owners) + ", got " +
                                      std::to_string(layout.units()));
  }
}

std::shared_ptr<const Plan> Session::Impl::plan_for(Collective collective,
                                                    const std::vector<Piece>& pieces,
                                                    int root) {
  std::int64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.count * element_bytes(piece.dtype);
  const std::string spec = select_schedule(options_.schedule, collective, bytes);
  const int counted_root = has_root(collective) ? root : 0;
  auto& plan = plans_[{spec, collective, counted_root}];
  if (plan == nullptr) {
    plan = make_plan(build_schedule(spec, collective, view_.world_size(), counted_root), rank_);
  }
  return plan;
}

Session::Handle Session::Impl::start(Collective collective, std::vector<Piece> pieces, int root,
                                     const std::string& name) {
  require_same_process();
  check(collective, pieces, root);
  std::unique_lock lock(mutex_);
  throw_if_dead(lock);
  auto pending = std::make_shared<Pending>();
  OperationSpec spec;
  spec.plan = plan_for(collective, pieces, root);
  const Meaning meaning{collective,
                        root,
                        name,
                        spec.plan->schedule.name,
                        pieces,
                        options_.eager_bytes,
                        options_.segment_bytes};
  spec.key.scope = name.empty() ? 0 : hash_name(name);
  spec.fingerprint = fingerprint(meaning);
  // the words are seldom needed; what they are made of is kept until the operation is over
  spec.describe = [collective, root, name, plan = spec.plan, pieces,
                   eager = options_.eager_bytes, segment = options_.segment_bytes] {
    return in_words({collective, root, name, plan->schedule.name, pieces, eager, segment});
  };
  spec.eager_bytes = options_.eager_bytes;
  spec.cell_bytes = options_.segment_bytes;
  const bool widen = reduces(collective) && view_.world_size() > 1;
  for (const Piece& piece : pieces) {
    spec.pieces.push_back(widen && needs_widening(piece) ? pending->widen_piece(piece) : piece);
  }
  pending->started = Clock::now();
  pending->operation = executor_.start(std::move(spec));
  throw_if_dead(lock);
  return pending;
}

void Session::Impl::wait(const Handle& handle, Clock::time_point deadline,
                         const Interrupt& interrupt) {
  require_same_process();
  std::unique_lock lock(mutex_);
  Pending& pending = *handle;
  Clock::time_point asked = Clock::now();
  while (!pending.operation->done()) {
    throw_if_dead(lock);
    const Clock::time_point now = Clock::now();
    if (now >= deadline) {
      const auto waited = std::chrono::duration<double>(now - pending.started).count();
      executor_.die(ErrorCode::deadline, "deadline passed after " + std::to_string(waited) +
                                             " s in " + pending.operation->spec().describe() +
                                             " on rank " + std::to_string(rank_) + ": " +
                                             executor_.explain(*pending.operation, now));
      continue;
    }
    watch_stall(pending, now);
    drive(lock, pending, std::min(deadline, now + kSlice));
    if (interrupt && !pending.operation->done() && now - asked >= kSlice) {
      asked = now;
      lock.unlock();  // the caller's code may take any lock, Python's for one
      const bool stop = interrupt();
      lock.lock();
      if (stop) {
        executor_.die(ErrorCode::aborted, "rank " + std::to_string(rank_) +
                                              " was interrupted in " +
                                              pending.operation->spec().describe());
      }
    }
  }
  pending.finish();
}

// One turn: deliver what is there, then sleep until there is more. Only one thread at a time
// does so; the others sleep until it has moved something.
void Session::Impl::drive(std::unique_lock<std::mutex>& lock, const Pending& pending,
                          Clock::time_point until) {
  if (driving_) {
    progressed_.wait_until(lock, until);
    return;
  }
  driving_ = true;
  executor_.progress();
  if (!pending.operation->done() && !executor_.death()) {
    lock.unlock();
    transport_->wait(until);
    lock.lock();
    executor_.progress();
  }
  driving_ = false;
  progressed_.notify_all();
}

void Session::Impl::watch_stall(Pending& pending, Clock::time_point now) {
  const bool first = pending.announced == Clock::time_point{};
  const auto since = now - (first ? pending.started : pending.announced);
  if (since < (first ? kFirstStall : kStallRepeat)) return;
  pending.announced = now;
  executor_.announce_stall(*pending.operation);
}

void Session::Impl::throw_if_dead(std::unique_lock<std::mutex>& lock) {
  if (!executor_.death()) return;
  bury(lock);
  throw Error(*executor_.death());
}

void Session::Impl::bury(std::unique_lock<std::mutex>& lock) noexcept {
  while (driving_) {  // another thread sleeps in the transport
    transport_->wake();
    progressed_.wait_for(lock, milliseconds(10));
  }
  executor_.bury(Clock::now() + kFarewell);
  progressed_.notify_all();
}

Session::Session(View view, int rank, std::unique_ptr<Transport> transport,
                 SessionOptions options) {
  if (rank < 0 || rank >= view.world_size()) {
    throw Error(ErrorCode::usage, "rank must be in [0, " + std::to_string(view.world_size()) +
                                      "), got " + std::to_string(rank));
  }
  if (options.eager_bytes < 0 || options.segment_bytes < 16 ||
      options.segment_bytes % 16 != 0) {
    throw Error(ErrorCode::usage,
                "eager_bytes must be >= 0 and segment_bytes a positive multiple of 16, got " +
                    std::to_string(options.eager_bytes) + " and " +
                    std::to_string(options.segment_bytes));
  }
  impl_ =
      std::make_unique<Impl>(std::move(view), rank, std::move(transport), std::move(options));
}

Session::~Session() = default;

const View& Session::view() const noexcept {
  return impl_->view();
}
int Session::rank() const noexcept {
  return impl_->rank();
}
int Session::world_size() const noexcept {
  return impl_->view().world_size();
}
const char* Session::transport() const noexcept {
  return impl_->transport();
}
std::string Session::schedule() const {
  return impl_->schedule();
}
void Session::set_schedule(const std::string& spec) {
  impl_->set_schedule(spec);
}

Session::Handle Session::start(Collective collective, std::vector<Piece> pieces, int root,
                               const std::string& name) {
  return impl_->start(collective, std::move(pieces), root, name);
}

void Session::wait(const Handle& handle, Clock::time_point deadline,
                   const Interrupt& interrupt) {
  impl_->wait(handle, deadline, interrupt);
}

bool Session::done(const Handle& handle) const {
  return impl_->done(handle);
}

void Session::run(Collective collective, std::vector<Piece> pieces, int root,
                  const std::string& name, Clock::time_point deadline,
                  const Interrupt& interrupt) {
  wait(start(collective, std::move(pieces), root, name), deadline, interrupt);
}

SessionStats Session::stats() const {
  return impl_->stats();
}
void Session::close() noexcept {
  impl_->close();
}

}  // namespace kf
