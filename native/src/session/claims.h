// Which memory the operations under way use, so that no two of them work on the same bytes.
//
// Threads: used under the session's lock.
// Ownership: keeps an operation until it has let go of its memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kf/session.h"
#include "kf/types.h"

namespace kf {

struct MemorySpan {
  std::uintptr_t begin;
  std::uintptr_t end;
  bool writes;
};

// The memory of a call. A broadcast's root only reads; so does the sender of a message, and of
// the blocks of a sparse all_to_all, whose pieces stand by source and destination.
void append_spans(const std::vector<Piece>& pieces, Collective collective, bool is_root,
                  int sparse_rank, int size, std::vector<MemorySpan>& spans);

class Claims {
 public:
  // An operation under way that uses some of these bytes, unless both only read them; null:
  // there is none. Forgets those that are done.
  const Session::Pending* conflict(const std::vector<MemorySpan>& spans);
  void add(Session::Handle pending) { under_way_.push_back(std::move(pending)); }
  void drop(const Session::Handle& pending);

 private:
  std::vector<Session::Handle> under_way_;
};

}  // namespace kf
