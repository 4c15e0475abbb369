// Payloads that the receiver reads where they lie: in the sender's registered memory, mapped
// here, or anywhere in the sender's memory through cross-memory attach.
//
// Threads: one thread at a time. Ownership: Borrower owns its mappings of the peer's arenas.
#pragma once

#include <algorithm>
#include <cstring>
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

  // Calls use(bytes) with the loan's memory in blocks, in order; `use` returns
  // bytes to be written there instead, or nothing. Returns why the memory could not be used,
  // empty when it was.
  template <class Use>
  std::string visit(const Loan& loan, Use&& use);
  // Copies the loan to `to`, as many bytes as the loan has.
  std::string copy(const Loan& loan, std::byte* to, std::uint64_t from, std::size_t bytes);

  // Whether this process may read the other's memory: tries with a word at `address` there.
  static bool may_attach(int pid, std::uint64_t address, std::uint64_t expected) noexcept;

 private:
  std::byte* mapped(const Loan& loan, std::string& failure);
  std::string transfer(bool write, std::byte* here, std::uint64_t there, std::size_t bytes);

  int pid_;
  std::map<std::uint32_t, Segment> arenas_;
  std::vector<std::byte> scratch_;
};

// At once: mapped memory by what stays in the first two levels of cache until it is written
// back, private memory by what is worth a system call and stays in the second.
inline constexpr std::size_t kMappedBlock = 16 * 1024;
inline constexpr std::size_t kPrivateBlock = 128 * 1024;

template <class Use>
std::string Borrower::visit(const Loan& loan, Use&& use) {
  std::string failure;
  std::byte* lent = nullptr;
  if (loan.arena != kPrivate) {
    lent = mapped(loan, failure);
    if (lent == nullptr) return failure;
  } else {
    scratch_.resize(kPrivateBlock);
  }
  const std::size_t block = lent != nullptr ? kMappedBlock : kPrivateBlock;
  for (std::uint64_t done = 0; done < loan.bytes; done += block) {
    const auto part =
        static_cast<std::size_t>(std::min<std::uint64_t>(block, loan.bytes - done));
    std::byte* here = lent != nullptr ? lent + done : scratch_.data();
    if (lent == nullptr) failure = transfer(false, here, loan.at + done, part);
    if (!failure.empty()) return failure;
    const std::span<std::byte> back = use(std::span<const std::byte>(here, part));
    if (back.empty()) continue;
    if (lent != nullptr) {
      std::memcpy(here, back.data(), back.size());
    } else {
      failure = transfer(true, back.data(), loan.at + done, back.size());
    }
  }
  return failure;
}

}  // namespace kf
