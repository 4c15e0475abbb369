// Payloads that the receiver reads where they lie: in the sender's registered memory, mapped
// here, or anywhere in the sender's memory through cross-memory attach.
//
// Threads: one thread at a time. Ownership: Borrower owns its mappings of the peer's arenas.
#pragma once

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kf/shared_memory.h"
#include "transport/shm/ring.h"
#include "transport/shm/segment.h"

namespace kf {

// Describes `regions` as loans; false when some of them is not registered and `attachable` says
// that the receiver cannot read this process's private memory.
bool describe_loans(const SharedMemory* registered, bool attachable,
                    std::span<const Region> regions, std::vector<Loan>& loans);

class Borrower {
 public:
  explicit Borrower(int pid) noexcept : pid_(pid) {}

  // Calls use(bytes) with the loan's memory, in order; pieces are whole elements of at most
  // 16 bytes, as long as the loan is. Returns why it could not be read, empty when it was.
  template <class Use>
  std::string read(const Loan& loan, Use&& use);

  // Whether this process may read the other's memory: tries with a word at `address` there.
  static bool may_attach(int pid, std::uint64_t address, std::uint64_t expected) noexcept;

 private:
  const std::byte* mapped(const Loan& loan, std::string& failure);
  bool fetch(std::uint64_t address, std::size_t bytes, std::string& failure);

  int pid_;
  std::map<std::uint32_t, Segment> arenas_;
  std::vector<std::byte> scratch_;
};

inline constexpr std::size_t kFetchBytes = 64 * 1024;  // at once; stays in the cache

template <class Use>
std::string Borrower::read(const Loan& loan, Use&& use) {
  std::string failure;
  if (loan.arena != kPrivate) {
    const std::byte* bytes = mapped(loan, failure);
    if (bytes != nullptr) use(std::span(bytes, static_cast<std::size_t>(loan.bytes)));
    return failure;
  }
  for (std::uint64_t done = 0; done < loan.bytes; done += kFetchBytes) {
    const auto part =
        static_cast<std::size_t>(std::min<std::uint64_t>(kFetchBytes, loan.bytes - done));
    if (!fetch(loan.at + done, part, failure)) return failure;
    use(std::span<const std::byte>(scratch_.data(), part));
  }
  return {};
}

}  // namespace kf
