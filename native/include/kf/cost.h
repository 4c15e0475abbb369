// What a schedule costs on a uniform network. Pure arithmetic over the schedule.
//
// Terms: port: a rank's connection to the network, full duplex: out and in do not disturb each
//        other; alpha: latency_s; beta: 1 / bytes_per_s; gamma: 1 / reduce_bytes_per_s.
// Threads: safe everywhere.
//
// Model (alpha-beta-gamma, un-segmented, round-synchronous). Round i of all channels runs at
// the same time; the next begins when all of it is done. One round takes
//   latency_s + B / bytes_per_s + R / reduce_bytes_per_s
// B: most bytes that leave or enter one port in the round, over all channels together;
// R: most bytes that one rank adds in the round.
// The switch is ideal: only ports are shared. Latency is paid once a round, however many
// messages a rank sends in it, and also where chunks are empty. What reduces less than the
// busiest rank waits. Chunks are cut by chunk_range, so uneven cuts are priced as they are
// sent. Source: Thakur, Rabenseifner and Gropp, IJHPCA 2005, section 3 (cost model).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "kf/schedule.h"

namespace kf {

struct Network {
  double latency_s = 0;    // alpha, s per round, >= 0
  double bytes_per_s = 0;  // of each port, each way, > 0
  double reduce_bytes_per_s = std::numeric_limits<double>::infinity();  // > 0
};

struct Cost {
  int rounds = 0;                        // of the longest channel
  std::vector<std::int64_t> bytes_sent;  // by each rank
  double time_s = 0;
};

// Cost of one run over a buffer of `buffer_bytes`, cut at multiples of `unit_bytes` (the size
// of an element). Throws Error{usage}: a size outside [0, 2^48] or no multiple of the unit, a
// network that is not as stated above, or a schedule with a rank or chunk out of range.
Cost cost(const Schedule& schedule, std::int64_t buffer_bytes, const Network& network,
          std::int64_t unit_bytes = 1);

// Hosts of equally many ranks, ranks of a host in a row. The ranks of a host share its one port
// to the others.
struct Hosts {
  Network between;  // its reduce_bytes_per_s holds for all adding
  Network inside;   // latency and each rank's port to the ranks of its host
  int ranks_per_host = 1;
};

// Time of one run over such hosts, in s: as above, but a round costs the latency of the slower
// kind of link it uses, and the longer of the busiest rank's port inside a host and the busiest
// host's port. Throws as cost does, and for ranks_per_host < 1.
double time_on_hosts(const Schedule& schedule, std::int64_t buffer_bytes, const Hosts& hosts);

}  // namespace kf
