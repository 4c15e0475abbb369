#include "transport/shm/loans.h"

#include <sys/uio.h>

#include <cerrno>

#include "kf/error.h"
#include "transport/tcp/socket.h"

namespace kf {

bool describe_loans(const SharedMemory* registered, bool attachable,
                    std::span<const Region> regions, std::vector<Loan>& loans) {
  loans.clear();
  for (const Region& region : regions) {
    const auto place =
        registered == nullptr ? std::nullopt : registered->find(region.data(), region.size());
    if (place) {
      loans.push_back({place->arena, place->fd, place->offset, region.size()});
    } else if (attachable) {
      loans.push_back(
          {kPrivate, -1,
           static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(region.data())),
           region.size()});
    } else {
      return false;
    }
  }
  return true;
}

std::byte* Borrower::mapped(const Loan& loan, std::string& failure) {
  auto found = arenas_.find(loan.arena);
  if (found == arenas_.end()) {
    try {
      found = arenas_.emplace(loan.arena, Segment::attach(pid_, loan.fd, 0)).first;
    } catch (const Error& error) {
      failure = error.what();
      return nullptr;
    }
  }
  const Segment& arena = found->second;
  if (loan.bytes > arena.bytes() || loan.at > arena.bytes() - loan.bytes) {
    failure = "it lent memory outside its arena";
    return nullptr;
  }
  return arena.data() + loan.at;
}

std::string Borrower::transfer(bool write, std::byte* here, std::uint64_t there,
                               std::size_t bytes) {
  const auto call = write ? ::process_vm_writev : ::process_vm_readv;
  for (std::size_t done = 0; done < bytes;) {
    const iovec local{here + done, bytes - done};
    const iovec remote{reinterpret_cast<void*>(static_cast<std::uintptr_t>(there + done)),
                       bytes - done};
    const ssize_t moved = call(pid_, &local, 1, &remote, 1, 0);
    if (moved <= 0) return "its memory cannot be reached: " + error_text(errno);
    done += static_cast<std::size_t>(moved);
  }
  return {};
}

std::string Borrower::copy(const Loan& loan, std::byte* to, std::uint64_t from,
                           std::size_t bytes) {
  if (loan.arena == kPrivate) return transfer(false, to, loan.at + from, bytes);
  std::string failure;
  const std::byte* lent = mapped(loan, failure);
  if (lent != nullptr) std::memcpy(to, lent + from, bytes);
  return failure;
}

bool Borrower::may_attach(int pid, std::uint64_t address, std::uint64_t expected) noexcept {
  std::uint64_t value = 0;
  const iovec local{&value, sizeof(value)};
  const iovec remote{reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)),
                     sizeof(value)};
  return ::process_vm_readv(pid, &local, 1, &remote, 1, 0) ==
             static_cast<ssize_t>(sizeof(value)) &&
         value == expected;
}

}  // namespace kf
