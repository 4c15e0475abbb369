// How many operations each scope has started: a table of 16 bytes an entry, for sessions that
// name millions of operations. Entries are never removed: the peers count on from them.
//
// Threads: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kf {

class Sequences {
 public:
  // First sequence of the scope that was not started here. `scope` is a hash, never 0.
  std::uint64_t next(std::uint64_t scope) const noexcept {
    return entries_.empty() ? 0 : entries_[slot(scope)].count;
  }
  // That sequence, which is started now.
  std::uint64_t take(std::uint64_t scope) {
    if (4 * (used_ + 1) > 3 * entries_.size()) grow();
    Entry& entry = entries_[slot(scope)];
    if (entry.scope == 0) {
      entry.scope = scope;
      ++used_;
    }
    return entry.count++;
  }
  std::size_t bytes() const noexcept { return entries_.capacity() * sizeof(Entry); }

 private:
  struct Entry {
    std::uint64_t scope = 0;  // 0: free
    std::uint64_t count = 0;
  };

  std::size_t slot(std::uint64_t scope) const noexcept {
    const std::size_t mask = entries_.size() - 1;
    std::size_t at = static_cast<std::size_t>((scope * 0x9E3779B97F4A7C15ULL) >> 32) & mask;
    while (entries_[at].scope != 0 && entries_[at].scope != scope) at = (at + 1) & mask;
    return at;
  }
  void grow() {
    std::vector<Entry> old(entries_.empty() ? 64 : 2 * entries_.size());
    old.swap(entries_);
    for (const Entry& entry : old) {
      if (entry.scope != 0) entries_[slot(entry.scope)] = entry;
    }
  }

  std::vector<Entry> entries_;  // a power of two
  std::size_t used_ = 0;
};

}  // namespace kf
