// The membership a session is bound to: an immutable, numbered, ordered list of members.
//
// Terms: member: stable identity of a worker for its life; its place in the list is its rank.
// Threads: a value; safe everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kf {

struct View {
  std::int64_t version = 1;          // strictly increasing from view to view
  std::vector<std::string> members;  // member ids; the index is the rank
  int world_size() const noexcept { return static_cast<int>(members.size()); }
};

}  // namespace kf
