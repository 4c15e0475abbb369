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

const std::byte* Borrower::mapped(const Loan& loan, std::string& failure) {
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

bool Borrower::fetch(std::uint64_t address, std::size_t bytes, std::string& failure) {
  scratch_.resize(kFetchBytes);
  std::size_t done = 0;
  while (done < bytes) {
    const iovec local{scratch_.data() + done, bytes - done};
    const iovec remote{reinterpret_cast<void*>(static_cast<std::uintptr_t>(address + done)),
                       bytes - done};
    const ssize_t got = ::process_vm_readv(pid_, &local, 1, &remote, 1, 0);
    if (got <= 0) {
      failure = "its memory cannot be read: " + error_text(errno);
      return false;
    }
    done += static_cast<std::size_t>(got);
  }
  return true;
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
