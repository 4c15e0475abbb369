#include "replay/lean.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace kf::replay {
namespace {

std::size_t index(int i) {
  return static_cast<std::size_t>(i);
}

double seconds_a_byte(double bytes_per_s) {
  return std::isinf(bytes_per_s) ? 0.0 : 1.0 / bytes_per_s;
}

// Whether each rank sends at most one of the messages and receives at most one, and all reduce
// or none does.
bool apart(std::span<const Message> round, std::vector<char>& sends,
           std::vector<char>& receives) {
  bool ok = true;
  for (const Message& m : round) {
    ok = ok && !sends[index(m.src)] && !receives[index(m.dst)];
    ok = ok && m.reduce == round.front().reduce;
    sends[index(m.src)] = receives[index(m.dst)] = 1;
  }
  for (const Message& m : round) sends[index(m.src)] = receives[index(m.dst)] = 0;
  return ok;
}

// From the start of each message of a round to when it is sent and when it is there.
void stream(const Lean::Pattern& p, const double* __restrict bytes, double message_s,
            const double* __restrict start_s, double* __restrict out_free,
            double* __restrict in_free, double* __restrict sent_s, double* __restrict done_s) {
  const double* __restrict latency_s = p.latency_s.data();
  const double* __restrict egress_s = p.egress_s.data();
  const double* __restrict ingress_s = p.ingress_s.data();
  const std::size_t count = p.connection.size();
  out_free += p.first;
  in_free += p.first;
  for (std::size_t i = 0; i < count; ++i) {
    const double start = start_s[i];
    const double out =
        (start > out_free[i] ? start : out_free[i]) + message_s + bytes[i] * egress_s[i];
    const double alone = (start > in_free[i] ? start : in_free[i]) + bytes[i] * ingress_s[i];
    const double in = out > alone ? out : alone;
    out_free[i] = sent_s[i] = out;
    in_free[i] = in;
    done_s[i] = in + latency_s[i];
  }
}

Lean::Pattern make_pattern(const Program& program, const std::vector<int>& connections) {
  Lean::Pattern pattern;
  pattern.connection = connections;
  pattern.first = connections.front();
  for (const int number : connections) {
    const Connection& c = program.connections[index(number)];
    pattern.src.push_back(c.src);
    pattern.dst.push_back(c.dst);
    pattern.latency_s.push_back(c.latency_s);
    pattern.egress_s.push_back(seconds_a_byte(program.port_rate[index(c.egress)]));
    pattern.ingress_s.push_back(seconds_a_byte(program.port_rate[index(c.ingress)]));
  }
  return pattern;
}

}  // namespace

std::optional<Lean> make_lean(Program& program) {
  Lean lean;
  lean.connections = program.connections.size();
  lean.message_s = program.fabric.message_s;
  lean.reduce_s = seconds_a_byte(program.fabric.reduce_bytes_per_s);
  lean.world_size = program.world_size;
  std::map<std::vector<int>, int> known;
  std::vector<char> sends(index(program.world_size), 0), receives(sends);
  std::vector<int> pattern;
  for (std::size_t r = 0; r + 1 < program.round_begin.size(); ++r) {
    const auto first = index(program.round_begin[r]);
    const auto round =
        std::span(program.messages).subspan(first, index(program.round_begin[r + 1]) - first);
    if (round.empty()) continue;
    if (!apart(round, sends, receives)) return std::nullopt;
    pattern.clear();
    for (const Message& m : round) pattern.push_back(m.connection);
    for (std::size_t i = 0; i < pattern.size(); ++i) {
      if (pattern[i] != pattern.front() + static_cast<int>(i)) return std::nullopt;
    }
    const auto [place, fresh] = known.emplace(pattern, static_cast<int>(lean.patterns.size()));
    if (fresh) lean.patterns.push_back(make_pattern(program, pattern));
    lean.rounds.push_back(
        {place->second, static_cast<std::int64_t>(first), round.front().reduce});
  }
  program.drop_slots();
  lean.bytes.reserve(program.messages.size());
  for (const Message& m : program.messages) lean.bytes.push_back(static_cast<double>(m.bytes));
  return lean;
}

std::vector<double> run_lean(const Lean& lean, std::span<const double> ready_s) {
  std::vector<double> at(ready_s.begin(), ready_s.end());
  std::vector<double> start_s(at.size()), sent_s(at.size()), done_s(at.size());
  // Per connection: when its egress and its ingress port are free.
  std::vector<double> out_free(lean.connections, -std::numeric_limits<double>::infinity());
  std::vector<double> in_free(out_free);
  for (const Lean::Round& round : lean.rounds) {
    const Lean::Pattern& p = lean.patterns[index(round.pattern)];
    const double* bytes = lean.bytes.data() + round.first;
    const double reduce_s = round.reduce ? lean.reduce_s : 0.0;
    const std::size_t count = p.connection.size();
    const int* src = p.src.data();
    const int* dst = p.dst.data();
    for (std::size_t i = 0; i < count; ++i) {  // reads that jump, apart from sums that do not
      start_s[i] = std::max(at[index(src[i])], ready_s[index(dst[i])]);
    }
    stream(p, bytes, lean.message_s, start_s.data(), out_free.data(), in_free.data(),
           sent_s.data(), done_s.data());
    // A rank may both send and receive in the round: nobody moves on before all is computed.
    // No two messages of a round have the same sender or receiver.
    for (std::size_t i = 0; i < count; ++i) {
      double& sender = at[index(src[i])];
      sender = std::max(sender, sent_s[i]);
    }
    for (std::size_t i = 0; i < count; ++i) {
      double& receiver = at[index(dst[i])];
      receiver = std::max(receiver, done_s[i]) + bytes[i] * reduce_s;
    }
  }
  return at;
}

}  // namespace kf::replay
