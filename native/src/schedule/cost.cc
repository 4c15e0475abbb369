#include "kf/cost.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include "kf/validate.h"
#include "schedule/spec.h"

namespace kf {

namespace {

using std::size_t;

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 48;  // sums over all ranks stay exact

void check(std::int64_t buffer_bytes, const Network& network, std::int64_t unit_bytes) {
  if (unit_bytes < 1) throw_usage("unit_bytes must be >= 1, got " + std::to_string(unit_bytes));
  if (buffer_bytes < 0 || buffer_bytes > kMaxBytes || buffer_bytes % unit_bytes != 0) {
    throw_usage("buffer_bytes must be in [0, 2^48] and a multiple of " +
                std::to_string(unit_bytes) + ", got " + std::to_string(buffer_bytes));
  }
  if (!(network.latency_s >= 0) || !std::isfinite(network.latency_s)) {
    throw_usage("latency_s must be finite and >= 0, got " + std::to_string(network.latency_s));
  }
  if (!(network.bytes_per_s > 0)) {
    throw_usage("bytes_per_s must be > 0, got " + std::to_string(network.bytes_per_s));
  }
  if (!(network.reduce_bytes_per_s > 0)) {
    throw_usage("reduce_bytes_per_s must be > 0, got " +
                std::to_string(network.reduce_bytes_per_s));
  }
}

// Bytes at every port in one round.
struct Load {
  explicit Load(size_t ranks) : out(ranks), in(ranks), reduced(ranks) {}

  void clear() {
    for (auto* bytes : {&out, &in, &reduced}) std::fill(bytes->begin(), bytes->end(), 0);
  }
  double busiest_port() const { return static_cast<double>(std::max(most(out), most(in))); }
  double busiest_adder() const { return static_cast<double>(most(reduced)); }

  static std::int64_t most(const std::vector<std::int64_t>& bytes) {
    return *std::max_element(bytes.begin(), bytes.end());
  }

  std::vector<std::int64_t> out;
  std::vector<std::int64_t> in;
  std::vector<std::int64_t> reduced;
};

std::int64_t units_of(const Transfer& transfer, std::int64_t units, int chunk_count) {
  const ChunkRange last =
      chunk_range(units, chunk_count, transfer.chunk_begin + transfer.chunk_count - 1);
  return last.begin + last.count - chunk_range(units, chunk_count, transfer.chunk_begin).begin;
}

}  // namespace

Cost cost(const Schedule& schedule, std::int64_t buffer_bytes, const Network& network,
          std::int64_t unit_bytes) {
  check(buffer_bytes, network, unit_bytes);
  check_numbers(schedule);
  Cost total;
  total.bytes_sent.assign(static_cast<size_t>(schedule.world_size), 0);
  size_t rounds = 0;
  for (const Channel& channel : schedule.channels)
    rounds = std::max(rounds, channel.rounds.size());
  total.rounds = static_cast<int>(rounds);
  Load load(static_cast<size_t>(schedule.world_size));
  for (size_t r = 0; r < rounds; ++r) {
    load.clear();
    for (const Channel& channel : schedule.channels) {
      if (r >= channel.rounds.size()) continue;
      for (const Transfer& transfer : channel.rounds[r]) {
        const std::int64_t bytes =
            unit_bytes * units_of(transfer, buffer_bytes / unit_bytes, schedule.chunk_count);
        load.out[static_cast<size_t>(transfer.src)] += bytes;
        load.in[static_cast<size_t>(transfer.dst)] += bytes;
        total.bytes_sent[static_cast<size_t>(transfer.src)] += bytes;
        if (transfer.combine == Combine::reduce) {
          load.reduced[static_cast<size_t>(transfer.dst)] += bytes;
        }
      }
    }
    total.time_s += network.latency_s + load.busiest_port() / network.bytes_per_s +
                    load.busiest_adder() / network.reduce_bytes_per_s;
  }
  return total;
}

double time_on_hosts(const Schedule& schedule, std::int64_t buffer_bytes, const Hosts& hosts) {
  check(buffer_bytes, hosts.between, 1);
  check(buffer_bytes, hosts.inside, 1);
  check_numbers(schedule);
  if (hosts.ranks_per_host < 1) {
    throw_usage("ranks_per_host must be >= 1, got " + std::to_string(hosts.ranks_per_host));
  }
  const int per_host = hosts.ranks_per_host;
  const auto ranks = static_cast<size_t>(schedule.world_size);
  const size_t host_count =
      (ranks + static_cast<size_t>(per_host) - 1) / static_cast<size_t>(per_host);
  Load inside(ranks);
  Load between(host_count);
  size_t rounds = 0;
  for (const Channel& channel : schedule.channels)
    rounds = std::max(rounds, channel.rounds.size());
  double time_s = 0;
  for (size_t r = 0; r < rounds; ++r) {
    inside.clear();
    between.clear();
    double latency_s = 0;
    for (const Channel& channel : schedule.channels) {
      if (r >= channel.rounds.size()) continue;
      for (const Transfer& t : channel.rounds[r]) {
        const std::int64_t bytes = units_of(t, buffer_bytes, schedule.chunk_count);
        const int from = t.src / per_host;
        const int to = t.dst / per_host;
        Load& load = from == to ? inside : between;
        load.out[static_cast<size_t>(from == to ? t.src : from)] += bytes;
        load.in[static_cast<size_t>(from == to ? t.dst : to)] += bytes;
        if (t.combine == Combine::reduce) inside.reduced[static_cast<size_t>(t.dst)] += bytes;
        latency_s = std::max(latency_s, (from == to ? hosts.inside : hosts.between).latency_s);
      }
    }
    time_s += latency_s +
              std::max(inside.busiest_port() / hosts.inside.bytes_per_s,
                       between.busiest_port() / hosts.between.bytes_per_s) +
              inside.busiest_adder() / hosts.between.reduce_bytes_per_s;
  }
  return time_s;
}

}  // namespace kf
