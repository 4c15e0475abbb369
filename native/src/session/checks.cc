#include "session/checks.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "kf/error.h"

namespace kf {

void require_memory(const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) {
    if (piece.data != nullptr || piece.count <= 0) continue;
    throw Error(ErrorCode::usage,
                "a piece of " + std::to_string(piece.count) + " elements has no memory");
  }
}

void require_disjoint(const std::vector<Piece>& pieces) {
  if (pieces.size() < 2) return;
  using Address = std::uintptr_t;
  std::vector<std::pair<Address, Address>> spans;
  spans.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    if (piece.count <= 0 || piece.data == nullptr) continue;
    const auto begin = reinterpret_cast<Address>(piece.data);
    spans.emplace_back(begin,
                       begin + static_cast<Address>(piece.count * element_bytes(piece.dtype)));
  }
  std::sort(spans.begin(), spans.end());
  for (std::size_t i = 1; i < spans.size(); ++i) {
    if (spans[i].first < spans[i - 1].second) {
      throw Error(ErrorCode::usage,
                  "the arrays of one operation must not share memory, two of them do");
    }
  }
}

}  // namespace kf
