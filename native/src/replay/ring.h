// Rings: every round is the same rank-to-next-rank pattern and its sizes are those of the round
// before, turned by some places. A round is then a few straight passes over arrays that stay in
// the nearest cache, and a message costs no memory at all.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "replay/lean.h"

namespace kf::replay {

struct Ring {
  struct Round {
    std::size_t turn;  // message i carries bytes[i + turn]
    bool reduce;
  };
  // Message i goes from rank i to rank i + 1, the last to rank 0.
  std::vector<double> latency_s, egress_s, ingress_s;  // [world_size]; the rates a byte
  std::vector<double> bytes;                           // [2 * world_size], twice the same
  std::vector<Round> rounds;
  double message_s = 0.0;
  double reduce_s = 0.0;  // a byte
};

// Nothing if the messages are not those of a ring.
std::optional<Ring> make_ring(const Lean& lean);

// The same times as run_lean, to the last bit.
std::vector<double> run_ring(const Ring& ring, std::span<const double> ready_s);

}  // namespace kf::replay
