#include "session/fork_guard.h"

#include <sys/mman.h>
#include <unistd.h>

namespace kf {

namespace {

std::size_t page_bytes() noexcept {
  return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

ForkGuard::ForkGuard() noexcept {
  void* page =
      ::mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (::madvise(page, page_bytes(), MADV_WIPEONFORK) != 0) {
    ::munmap(page, page_bytes());
    return;
  }
  word_ = static_cast<std::uint64_t*>(page);
  *word_ = kAlive;
}

ForkGuard::~ForkGuard() {
  if (word_ != nullptr) ::munmap(const_cast<std::uint64_t*>(word_), page_bytes());
}

}  // namespace kf
