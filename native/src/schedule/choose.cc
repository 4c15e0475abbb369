#include "kf/choose.h"

#include <vector>

#include "kf/generators.h"
#include "schedule/generator.h"

namespace kf {

namespace {

// What a spec without numbers assumes: a virtual machine on a 10 Gb/s network
// (kf/generators.h).
constexpr double kLatencyS = 50e-6;
constexpr double kBytesPerS = 1.25e9;
constexpr double kBufferBytes = 4.0 * (1 << 20);

std::vector<const char*> candidates(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
      return {"halving_doubling", "recursive_doubling", "double_binary_tree", "ring"};
    case Collective::reduce:
    case Collective::broadcast:
      return {"halving_doubling", "binomial_tree"};
    case Collective::reduce_scatter:
      return {"halving_doubling", "ring"};
    case Collective::all_gather:
      return {"halving_doubling", "ring"};
    case Collective::gather:
    case Collective::scatter:
      return {"binomial_tree"};
    case Collective::all_to_all:
      return {"pairwise"};
    case Collective::barrier:
      return {"dissemination"};
  }
  return {};
}

// Closed form of what cost() finds for a ring; building n^2 transfers to learn it would be
// slow.
double ring_time_s(Collective collective, std::int64_t buffer_bytes, int n,
                   const Network& net) {
  const auto chunk_bytes = static_cast<double>((buffer_bytes + n - 1) / n);
  const double gather_round_s = net.latency_s + chunk_bytes / net.bytes_per_s;
  const double reduce_round_s = gather_round_s + chunk_bytes / net.reduce_bytes_per_s;
  double round_s = 0;
  if (collective != Collective::all_gather) round_s += reduce_round_s;
  if (collective != Collective::reduce_scatter) round_s += gather_round_s;
  return (n - 1) * round_s;
}

}  // namespace

std::string choose_schedule(Collective collective, std::int64_t buffer_bytes, int world_size,
                            const Network& network) {
  std::string best;
  double best_s = 0;
  for (const std::string name : candidates(collective)) {
    double time_s = 0;
    if (name == "ring") {
      time_s = ring_time_s(collective, buffer_bytes, world_size, network);
    } else if (name != "pairwise") {
      time_s = cost(build_schedule(name, collective, world_size), buffer_bytes, network).time_s;
    }
    if (best.empty() || time_s < best_s) {
      best = name;
      best_s = time_s;
    }
  }
  return best;
}

Schedule build_auto(Arguments& arguments, const Request& request) {
  Network network;
  const double buffer_bytes = arguments.positive("buffer_bytes", kBufferBytes);
  network.latency_s = arguments.positive("latency_s", kLatencyS);
  network.bytes_per_s = arguments.positive("bytes_per_s", kBytesPerS);
  network.reduce_bytes_per_s =
      arguments.positive("reduce_bytes_per_s", network.reduce_bytes_per_s);
  constexpr double kMostBytes = 1e18;  // fits 64 bits
  if (buffer_bytes > kMostBytes) throw_usage("auto's buffer_bytes must be at most 1e18");
  const std::string spec = choose_schedule(
      request.collective, static_cast<std::int64_t>(buffer_bytes), request.world_size, network);
  return build_schedule(spec, request.collective, request.world_size, request.root);
}

}  // namespace kf
