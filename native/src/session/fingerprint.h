// What a rank means by an operation, as a number to compare and as words to show. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kf/schedule.h"
#include "kf/types.h"

namespace kf {

struct Meaning {
  Collective collective;
  int root;                   // counts for rooted collectives only
  std::string_view name;      // empty: unnamed
  std::string_view schedule;  // canonical spec
  std::span<const Piece> pieces;
  std::int64_t eager_bytes;  // ranks must cut and gate messages alike
  std::int64_t segment_bytes;
  std::span<const std::int64_t> blocks = {};  // elements each owner has; empty: equally many
  std::span<const int> members = {};          // of the group; empty: the whole view
  std::string_view site = {};                 // where the program calls; empty: not compared
  const std::int64_t* tag = nullptr;          // of a message from members[0] to members[1]
};

bool reduces(Collective collective) noexcept;  // combines contributions
bool has_root(Collective collective) noexcept;

std::uint64_t hash_name(std::string_view name) noexcept;  // never 0
std::uint64_t fingerprint(const Meaning& meaning) noexcept;
// E.g. `all_reduce "loss" float32[4]:sum, float64[2]:max by ring`; long lists are cut short.
std::string in_words(const Meaning& meaning);

}  // namespace kf
