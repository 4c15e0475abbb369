// A lean form of schedules in which no two messages ever meet: one lane, one connection a port,
// and a rank sends and receives at most one message a round. Rings are of this kind, and theirs
// are the longest lists of messages: 8 bytes a message here instead of over 100.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "replay/program.h"

namespace kf::replay {

struct Lean {
  // Who sends to whom in one round; rounds alike share a pattern. Arrays per message.
  struct Pattern {
    std::vector<int> connection;  // consecutive numbers
    int first = 0;                // the first of them
    std::vector<int> src;
    std::vector<int> dst;
    std::vector<double> latency_s;
    std::vector<double> egress_s;   // a byte
    std::vector<double> ingress_s;  // a byte
  };
  struct Round {
    int pattern;
    std::int64_t first;  // of its entries in bytes
    bool reduce;
  };
  std::vector<Pattern> patterns;
  std::vector<Round> rounds;
  std::vector<double> bytes;  // per message
  std::size_t connections = 0;
  double message_s = 0.0;
  double reduce_s = 0.0;  // a byte
  int world_size = 0;
};

// Nothing if two messages of the program may meet, or a round's connections are not numbered in
// a row: the program is then as it was. Else it has lost its slots, to save memory. Ask only
// for one lane, one connection a port.
std::optional<Lean> make_lean(Program& program);

// The same times as run_rounds.
std::vector<double> run_lean(const Lean& lean, std::span<const double> ready_s);

}  // namespace kf::replay
