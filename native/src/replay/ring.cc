#include "replay/ring.h"

#include <algorithm>
#include <limits>

namespace kf::replay {
namespace {

std::size_t index(int i) {
  return static_cast<std::size_t>(i);
}

// By how many places `sizes` is `first` turned, tried near `guess` first.
std::optional<std::size_t> turn_of(std::span<const double> first, const double* sizes,
                                   std::size_t guess) {
  const std::size_t n = first.size();
  const auto fits = [&](std::size_t turn) {
    return std::equal(first.begin() + static_cast<std::ptrdiff_t>(turn), first.end(), sizes) &&
           std::equal(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(turn),
                      sizes + (n - turn));
  };
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t turn = (guess + 2 * n - 1 - i + (i == 2 ? 3 : 0)) % n;
    if (fits(turn)) return turn;
  }
  return std::nullopt;
}

// Working arrays; what rank i receives stands at place i, so that the last rank's message, put
// at place world_size, is rank 0's.
struct Arrays {
  double* at;                  // [world_size]
  double* in_free;             // [world_size], of message i
  double* arrived_s;           // [world_size + 1]
  double* carried;             // [world_size + 1], bytes
  const double* next_ready_s;  // [world_size]
};

[[gnu::always_inline]] inline void send(
    std::size_t n, double message_s, const double* __restrict bytes,
    const double* __restrict latency_s, const double* __restrict egress_s,
    const double* __restrict ingress_s, const double* __restrict next_ready_s,
    double* __restrict at, double* __restrict in_free, double* __restrict arrived_s) {
  for (std::size_t i = 0; i < n; ++i) {
    const double mine = at[i], other = next_ready_s[i], free = in_free[i];
    const double start = mine > other ? mine : other;
    const double out = start + message_s + bytes[i] * egress_s[i];
    const double alone = (start > free ? start : free) + bytes[i] * ingress_s[i];
    const double in = out > alone ? out : alone;
    in_free[i] = in;
    at[i] = mine > out ? mine : out;
    arrived_s[i] = in + latency_s[i];
  }
}

[[gnu::always_inline]] inline void receive(std::size_t n, double reduce_s,
                                           const double* __restrict arrived_s,
                                           const double* __restrict carried,
                                           double* __restrict at) {
  for (std::size_t i = 0; i < n; ++i) {
    const double mine = at[i], there = arrived_s[i];
    at[i] = (mine > there ? mine : there) + carried[i] * reduce_s;
  }
}

[[gnu::always_inline]] inline void run_round(const Ring& ring, const Ring::Round& round,
                                             const Arrays& a) {
  const std::size_t n = ring.latency_s.size();
  const double* bytes = ring.bytes.data() + round.turn;
  send(n, ring.message_s, bytes, ring.latency_s.data(), ring.egress_s.data(),
       ring.ingress_s.data(), a.next_ready_s, a.at, a.in_free, a.arrived_s + 1);
  a.arrived_s[0] = a.arrived_s[n];
  std::copy(bytes, bytes + n, a.carried + 1);
  a.carried[0] = a.carried[n];
  receive(n, round.reduce ? ring.reduce_s : 0.0, a.arrived_s, a.carried, a.at);
}

void run_rounds_plain(const Ring& ring, const Arrays& arrays) {
  for (const Ring::Round& round : ring.rounds) run_round(ring, round, arrays);
}

#if defined(__x86_64__) && defined(__GNUC__)
// Wider registers, the same operations in the same order: the same bits.
[[gnu::target("avx2")]] void run_rounds_wide(const Ring& ring, const Arrays& arrays) {
  for (const Ring::Round& round : ring.rounds) run_round(ring, round, arrays);
}
bool has_wide() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}
#else
void run_rounds_wide(const Ring& ring, const Arrays& arrays) {
  run_rounds_plain(ring, arrays);
}
bool has_wide() {
  return false;
}
#endif

}  // namespace

std::optional<Ring> make_ring(const Lean& lean) {
  if (lean.patterns.size() != 1) return std::nullopt;
  const Lean::Pattern& p = lean.patterns.front();
  const std::size_t n = p.src.size();
  if (n < 2 || n != index(lean.world_size)) return std::nullopt;
  for (std::size_t i = 0; i < n; ++i) {
    if (index(p.src[i]) != i || index(p.dst[i]) != (i + 1) % n) return std::nullopt;
  }
  Ring ring;
  ring.latency_s = p.latency_s;
  ring.egress_s = p.egress_s;
  ring.ingress_s = p.ingress_s;
  ring.message_s = lean.message_s;
  ring.reduce_s = lean.reduce_s;
  const auto first = std::span(lean.bytes).first(n);
  std::size_t turn = 0;
  for (const Lean::Round& round : lean.rounds) {
    const auto found =
        turn_of(first, lean.bytes.data() + static_cast<std::size_t>(round.first), turn);
    if (!found) return std::nullopt;
    turn = *found;
    ring.rounds.push_back({turn, round.reduce});
  }
  ring.bytes.assign(first.begin(), first.end());
  ring.bytes.insert(ring.bytes.end(), first.begin(), first.end());
  return ring;
}

std::vector<double> run_ring(const Ring& ring, std::span<const double> ready_s) {
  const std::size_t n = ready_s.size();
  std::vector<double> at(ready_s.begin(), ready_s.end());
  std::vector<double> next_ready_s(ready_s.begin() + 1, ready_s.end());
  next_ready_s.push_back(ready_s.front());
  std::vector<double> in_free(n, -std::numeric_limits<double>::infinity());
  std::vector<double> arrived_s(n + 1), carried(n + 1);
  const Arrays arrays{at.data(), in_free.data(), arrived_s.data(), carried.data(),
                      next_ready_s.data()};
  if (has_wide()) {
    run_rounds_wide(ring, arrays);
  } else {
    run_rounds_plain(ring, arrays);
  }
  return at;
}

}  // namespace kf::replay
