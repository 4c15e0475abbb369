// Tells a process from its forked children, for the price of reading one word.
//
// Threads: check() may be called by any thread. Ownership: owns one page, which the kernel
// clears in children (madvise MADV_WIPEONFORK, Linux 4.14).
#pragma once

#include <cstdint>

namespace kf {

class ForkGuard {
 public:
  ForkGuard() noexcept;
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  // True in the process that made this guard; true everywhere where the kernel cannot tell.
  bool same_process() const noexcept { return word_ == nullptr || *word_ == kAlive; }

 private:
  static constexpr std::uint64_t kAlive = 1;
  volatile std::uint64_t* word_ = nullptr;
};

}  // namespace kf
