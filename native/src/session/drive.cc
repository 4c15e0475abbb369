// Moving operations on: waiting callers, the session's own thread, stalls, deadlines, the end.
#include <csignal>

#include <algorithm>

#include "kf/error.h"
#include "session/impl.h"

namespace kf {

namespace {

using std::chrono::milliseconds;

constexpr auto kSlice = milliseconds(50);          // longest sleep between looks at the caller
constexpr auto kFirstStall = milliseconds(50);     // when a rank first says what it waits in
constexpr auto kStallRepeat = milliseconds(1000);  // and, at most, until it says so again
constexpr auto kFarewell = milliseconds(1000);     // longest time to hand over the last frames
constexpr auto kServing = milliseconds(1000);  // longest sleep of a thread that answers peers
constexpr auto kLinger = milliseconds(20);     // how long a thread waits for more to do

// How often a rank that waits says so: often enough that the others can tell within the
// operation's time that it no longer does.
milliseconds stall_repeat(const Session::Pending& pending, Clock::time_point deadline) {
  if (deadline == Clock::time_point::max()) return kStallRepeat;
  const auto share = std::chrono::duration_cast<milliseconds>(deadline - pending.started) / 5;
  return std::clamp(share, milliseconds(kFirstStall), milliseconds(kStallRepeat));
}

}  // namespace

// While one exists, the session's own thread leaves the transport to it.
class Session::Impl::Waiter {
 public:
  explicit Waiter(Impl& impl) : impl_(impl) {
    ++impl_.waiters_;
    if (impl_.thread_drives_) impl_.transport_->wake();
  }
  ~Waiter() {
    if (--impl_.waiters_ == 0 && impl_.thread_runs_) impl_.background_.notify_all();
  }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

 private:
  Impl& impl_;
};

void Session::Impl::wait(const Handle& handle, Clock::time_point deadline,
                         const Interrupt& interrupt) {
  require_same_process();
  Lock lock(mutex_);
  Pending& pending = *handle;
  Clock::time_point asked = Clock::now();
  if (!pending.complete()) {
    const Waiter waiter(*this);
    while (!pending.complete()) {
      throw_if_dead(lock);
      const Clock::time_point now = Clock::now();
      if (expire(pending, deadline, now)) continue;
      watch_stall(pending, deadline, now);
      drive(lock, &pending, std::min(deadline, now + kSlice));
      if (interrupt && !pending.complete() && now - asked >= kSlice) {
        asked = now;
        lock.unlock();  // the caller's code may take any lock, Python's for one
        const bool stop = interrupt();
        lock.lock();
        if (stop) {
          executor_.die(ErrorCode::aborted, "rank " + std::to_string(rank_) +
                                                " was interrupted in " +
                                                pending.operation->shape()->words());
        }
      }
    }
  }
  pending.finish();
}

bool Session::Impl::done(const Handle& handle) {
  const std::lock_guard lock(mutex_);
  if (!handle->complete()) return executor_.death().has_value();
  handle->finish();
  return true;
}

// True when the time is over; the session is dead then.
bool Session::Impl::expire(const Pending& pending, Clock::time_point deadline,
                           Clock::time_point now) {
  if (now < deadline) return false;
  const auto waited = std::chrono::duration<double>(now - pending.started).count();
  executor_.die(
      ErrorCode::deadline,
      "deadline passed after " + std::to_string(waited) + " s in " +
          pending.operation->shape()->words() + " on rank " + std::to_string(rank_) + ": " +
          executor_.explain(*pending.operation, now, stall_repeat(pending, deadline)));
  return true;
}

// One turn: deliver what is there, then sleep until there is more. Only one thread at a time
// does so; the others sleep until it has moved something.
void Session::Impl::drive(Lock& lock, const Pending* pending, Clock::time_point until) {
  if (driving_) {
    progressed_.wait_until(lock, until);
    return;
  }
  driving_ = true;
  executor_.progress();
  if (!(pending != nullptr && pending->complete()) && !executor_.death()) {
    lock.unlock();
    transport_->wait(until);
    lock.lock();
    executor_.progress();
  }
  driving_ = false;
  progressed_.notify_all();
}

void Session::Impl::watch_stall(Pending& pending, Clock::time_point deadline,
                                Clock::time_point now) {
  const bool first = pending.announced == Clock::time_point{};
  const auto since = now - (first ? pending.started : pending.announced);
  const milliseconds repeat = stall_repeat(pending, deadline);
  if (since < (first ? kFirstStall : repeat)) return;
  pending.announced = now;
  executor_.announce_stall(*pending.operation, repeat);
}

void Session::Impl::run_in_background(Lock& lock, const Handle& handle) {
  in_background_.push_back(handle);
  wake_thread(lock);
}

// Makes sure that the session's thread looks for something to do.
void Session::Impl::wake_thread(Lock& lock) {
  if (thread_runs_) {
    if (thread_drives_) transport_->wake();  // its sleep may be too long for this operation
    background_.notify_all();
    return;
  }
  if (thread_ != nullptr) {  // it has done its last work under the lock
    const std::unique_ptr<std::thread> old = std::move(thread_);
    old->join();
  }
  // signals belong to the program's threads
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_runs_ = true;
  try {
    thread_ = std::make_unique<std::thread>([this] { background(); });
  } catch (const std::exception& error) {
    thread_runs_ = false;
    executor_.die(
        ErrorCode::transport,
        std::string("cannot start a thread for background operations: ") + error.what());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  throw_if_dead(lock);
}

void Session::Impl::background() noexcept {
  Lock lock(mutex_);
  while (!executor_.death()) {
    std::erase_if(in_background_, [](const Handle& handle) { return handle->complete(); });
    if (!in_background_.empty() || serving_) {
      background_turn(lock);
      continue;
    }
    background_.wait_for(lock, kLinger);
    if (in_background_.empty() && !serving_) break;
  }
  // a rank that computes tells its peers at once why its session died
  if (executor_.death()) bury(lock);
  in_background_.clear();
  thread_runs_ = false;
}

void Session::Impl::background_turn(Lock& lock) {
  if (waiters_ > 0) {
    background_.wait_for(lock, kSlice);
    return;
  }
  const Clock::time_point now = Clock::now();
  Clock::time_point until = now + (in_background_.empty() ? kServing : kSlice);
  for (const Handle& handle : in_background_) {
    if (expire(*handle, handle->deadline, now)) return;
    until = std::min(until, handle->deadline);
    watch_stall(*handle, handle->deadline, now);
  }
  thread_drives_ = true;
  drive(lock, nullptr, until);
  thread_drives_ = false;
}

void Session::Impl::throw_if_dead(Lock& lock) {
  if (!executor_.death()) return;
  bury(lock);
  throw Error(*executor_.death());
}

void Session::Impl::bury(Lock& lock) noexcept {
  while (driving_) {  // another thread sleeps in the transport
    transport_->wake();
    progressed_.wait_for(lock, milliseconds(10));
  }
  executor_.bury(Clock::now() + kFarewell);
  progressed_.notify_all();
  background_.notify_all();
}

void Session::Impl::close() noexcept {
  if (!guard_.same_process()) return;
  std::unique_ptr<std::thread> thread;
  {
    Lock lock(mutex_);
    executor_.leave();
    bury(lock);
    thread = std::move(thread_);
  }
  if (thread != nullptr) thread->join();
}

}  // namespace kf
