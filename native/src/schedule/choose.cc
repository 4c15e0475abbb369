#include "kf/choose.h"

#include <algorithm>
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

bool has_hosts(int world_size, int ranks_per_host) {
  return ranks_per_host > 1 && ranks_per_host < world_size && world_size % ranks_per_host == 0;
}

constexpr int kMostBuiltRing = 256;  // a ring of n ranks has 2 n (n - 1) transfers

double price(const std::string& spec, Collective collective, std::int64_t buffer_bytes, int n,
             const Hosts& hosts) {
  if (spec == "pairwise") return 0;  // the only one there is
  const bool flat = !has_hosts(n, hosts.ranks_per_host);
  // over hosts, too, a round of a ring takes as long as its link between hosts
  if (spec == "ring" && (flat || n > kMostBuiltRing)) {
    return ring_time_s(collective, buffer_bytes, n, hosts.between);
  }
  const Schedule schedule = build_schedule(spec, collective, n);
  if (flat) return cost(schedule, buffer_bytes, hosts.between).time_s;
  return time_on_hosts(schedule, buffer_bytes, hosts);
}

}  // namespace

std::vector<Choice> choices(Collective collective, std::int64_t buffer_bytes, int world_size,
                            const Hosts& hosts) {
  std::vector<std::string> specs;
  for (const char* name : candidates(collective)) specs.emplace_back(name);
  if (collective == Collective::all_reduce && has_hosts(world_size, hosts.ranks_per_host)) {
    for (const char* intra : {"ring", "halving_doubling"}) {
      for (const char* inter : {"halving_doubling", "recursive_doubling", "ring"}) {
        specs.push_back(std::string("hierarchical(intra=") + intra + ",inter=" + inter +
                        ",ranks_per_host=" + std::to_string(hosts.ranks_per_host) + ")");
      }
    }
  }
  std::vector<Choice> priced;
  for (const std::string& spec : specs) {
    priced.push_back({spec, price(spec, collective, buffer_bytes, world_size, hosts)});
  }
  std::stable_sort(priced.begin(), priced.end(),
                   [](const Choice& a, const Choice& b) { return a.time_s < b.time_s; });
  return priced;
}

std::string choose_schedule(Collective collective, std::int64_t buffer_bytes, int world_size,
                            const Hosts& hosts) {
  return choices(collective, buffer_bytes, world_size, hosts).front().spec;
}

std::string choose_schedule(Collective collective, std::int64_t buffer_bytes, int world_size,
                            const Network& network) {
  return choose_schedule(collective, buffer_bytes, world_size, Hosts{network, network, 1});
}

Schedule build_auto(Arguments& arguments, const Request& request) {
  Hosts hosts;
  const double buffer_bytes = arguments.positive("buffer_bytes", kBufferBytes);
  hosts.between.latency_s = arguments.positive("latency_s", kLatencyS);
  hosts.between.bytes_per_s = arguments.positive("bytes_per_s", kBytesPerS);
  hosts.between.reduce_bytes_per_s =
      arguments.positive("reduce_bytes_per_s", hosts.between.reduce_bytes_per_s);
  hosts.ranks_per_host = arguments.integer("ranks_per_host", 1, 1, kMaxWorldSize);
  hosts.inside = hosts.between;
  hosts.inside.latency_s = arguments.positive("host_latency_s", hosts.between.latency_s);
  hosts.inside.bytes_per_s = arguments.positive("host_bytes_per_s", hosts.between.bytes_per_s);
  constexpr double kMostBytes = 1e18;  // fits 64 bits
  if (buffer_bytes > kMostBytes) throw_usage("auto's buffer_bytes must be at most 1e18");
  const std::string spec = choose_schedule(
      request.collective, static_cast<std::int64_t>(buffer_bytes), request.world_size, hosts);
  return build_schedule(spec, request.collective, request.world_size, request.root);
}

}  // namespace kf
