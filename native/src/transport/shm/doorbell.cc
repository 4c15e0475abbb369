#include "transport/shm/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

namespace kf {

namespace {

std::uint32_t* word(Bell& bell) noexcept {
  return reinterpret_cast<std::uint32_t*>(&bell.state);
}

}  // namespace

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

void arm(Bell& bell, Sleep how) noexcept {
  bell.state.store(static_cast<std::uint32_t>(how), std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void disarm(Bell& bell) noexcept {
  bell.state.store(static_cast<std::uint32_t>(Sleep::awake), std::memory_order_relaxed);
}

void sleep_on(Bell& bell, Clock::time_point until) noexcept {
  const auto left =
      std::max<std::int64_t>(0, std::chrono::nanoseconds(until - Clock::now()).count());
  const timespec timeout{static_cast<std::time_t>(left / 1'000'000'000),
                         static_cast<long>(left % 1'000'000'000)};
  ::syscall(SYS_futex, word(bell), FUTEX_WAIT, static_cast<std::uint32_t>(Sleep::on_bell),
            &timeout, nullptr, 0);
}

bool ring(Bell& bell) noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // after what the sleeper is to find
  if (bell.state.load(std::memory_order_relaxed) == static_cast<std::uint32_t>(Sleep::awake)) {
    return false;
  }
  const auto slept = static_cast<Sleep>(
      bell.state.exchange(static_cast<std::uint32_t>(Sleep::awake), std::memory_order_seq_cst));
  if (slept == Sleep::on_bell) {
    ::syscall(SYS_futex, word(bell), FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }
  return slept == Sleep::on_sockets;
}

}  // namespace kf
