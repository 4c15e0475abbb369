#include "session/claims.h"

#include <algorithm>

#include "session/pending.h"

namespace kf {

void append_spans(const std::vector<Piece>& pieces, Collective collective, bool is_root,
                  int sparse_rank, int size, std::vector<MemorySpan>& spans) {
  const auto rank = static_cast<std::size_t>(std::max(sparse_rank, 0));
  const auto n = static_cast<std::size_t>(size);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (piece.data == nullptr || piece.count <= 0) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(piece.data);
    const auto bytes = static_cast<std::uintptr_t>(piece.count * element_bytes(piece.dtype));
    bool writes = !(collective == Collective::broadcast && is_root);
    if (sparse_rank >= 0 && i / n == rank && i % n != rank) writes = false;
    spans.push_back({begin, begin + bytes, writes});
  }
}

namespace {

bool overlap(const std::vector<MemorySpan>& a, const std::vector<MemorySpan>& b) {
  for (const MemorySpan& one : a) {
    for (const MemorySpan& other : b) {
      if (one.begin < other.end && other.begin < one.end && (one.writes || other.writes)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

const Session::Pending* Claims::conflict(const std::vector<MemorySpan>& spans) {
  if (under_way_.empty()) return nullptr;
  std::erase_if(under_way_, [](const Session::Handle& pending) {
    if (!pending->complete()) return false;
    pending->finish();  // a handle that nobody waits for has its result too
    return true;
  });
  for (const Session::Handle& pending : under_way_) {
    if (overlap(pending->spans, spans)) return pending.get();
  }
  return nullptr;
}

void Claims::drop(const Session::Handle& pending) {
  // what is waited for is mostly what was started last
  const auto found = std::find(under_way_.rbegin(), under_way_.rend(), pending);
  if (found != under_way_.rend()) under_way_.erase(std::next(found).base());
}

}  // namespace kf
