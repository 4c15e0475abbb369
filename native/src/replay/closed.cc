#include "replay/closed.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace kf::replay {
namespace {

bool equal_ports(const Program& program) {
  const Fabric& net = program.fabric;
  const bool racks = !net.rack_of_host.empty() && !std::isinf(net.rack_bytes_per_s);
  const std::size_t hosts = net.egress_bytes_per_s.size();
  if (racks || !net.background.empty() ||
      hosts != static_cast<std::size_t>(program.world_size)) {
    return false;
  }
  return std::all_of(program.port_rate.begin(),
                     program.port_rate.begin() + static_cast<std::ptrdiff_t>(2 * hosts),
                     [&](double rate) { return rate == program.port_rate.front(); });
}

// Seconds of one round, or nothing if its ranks do not all do the same.
std::optional<double> round_s(const Program& program, std::size_t begin, std::size_t end) {
  const auto ranks = static_cast<std::size_t>(program.world_size);
  if (end - begin != ranks) return std::nullopt;
  std::vector<char> sends(ranks, 0), receives(ranks, 0);
  const Message& first = program.messages[begin];
  for (std::size_t i = begin; i < end; ++i) {
    const Message& m = program.messages[i];
    char& out = sends[static_cast<std::size_t>(m.src)];
    char& in = receives[static_cast<std::size_t>(m.dst)];
    if (out || in || m.bytes != first.bytes || m.reduce != first.reduce ||
        program.connection(m).local) {
      return std::nullopt;
    }
    out = in = 1;
  }
  const Fabric& net = program.fabric;
  const auto bytes = static_cast<double>(first.bytes);
  return net.message_s + bytes / program.port_rate.front() + net.latency_s +
         (first.reduce ? bytes / net.reduce_bytes_per_s : 0.0);
}

}  // namespace

std::optional<double> closed_form(const Program& program) {
  if (!program.one_lane() || !equal_ports(program)) return std::nullopt;
  double sum_s = 0.0;
  for (std::size_t round = 0; round + 1 < program.round_begin.size(); ++round) {
    const std::optional<double> one =
        round_s(program, static_cast<std::size_t>(program.round_begin[round]),
                static_cast<std::size_t>(program.round_begin[round + 1]));
    if (!one) return std::nullopt;
    sum_s += *one;
  }
  return sum_s;
}

}  // namespace kf::replay
