// Replay of a Schedule in simulated time: given when each rank is ready, when is each done?
//
// Terms: port: one direction of a host's network card, or of a rank's link inside its host;
//        lane: one segment of one channel, the unit that is pipelined;
//        fabric: the hosts' ports, what they share, and what else uses them;
//        tier: how sharing is computed. `recurrence` knows ports only and is fast;
//        `fluid` shares every link max-min fairly between connections (fluid.h);
//        `batched` does so too, but lets some flows come and go before it shares anew.
// Threads: concurrent run() calls are safe.
// Ownership: values; a Replay keeps what it needs of the schedule and the fabric.
//
// Model of one message of b bytes from s to d, ready at time t (docs/simulator.md):
//   it waits for s's egress port, takes message_s, streams at the ports' rates, and its last
//   byte arrives latency_s later; a `reduce` then takes b / reduce_bytes_per_s on d's
//   processor. A message never starts before its receiver has entered the operation.
// A rank sends its messages of round k once all it must receive before round k has arrived.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kf/schedule.h"

namespace kf {

// Greedy connections that do not belong to the job: each takes a fair share for ever.
struct BackgroundFlows {
  int src_host;  // host index, or -1: outside the cluster, never the bottleneck
  int dst_host;  // host index, or -1
  int count;     // >= 1
};

struct Fabric {
  std::vector<int> host_of_rank;            // [world_size], host index of each rank
  std::vector<double> egress_bytes_per_s;   // [hosts], > 0
  std::vector<double> ingress_bytes_per_s;  // [hosts], > 0
  double latency_s = 0.0;                   // between hosts, per message
  double message_s = 0.0;                   // processor time to send one message
  double reduce_bytes_per_s = std::numeric_limits<double>::infinity();
  double local_bytes_per_s =
      std::numeric_limits<double>::infinity();  // inside a host, per rank
  double local_latency_s = 0.0;
  std::vector<int> rack_of_host;  // [hosts], or empty: no racks
  double rack_bytes_per_s =
      std::numeric_limits<double>::infinity();  // each rack's up- and downlink
  std::vector<BackgroundFlows> background;
  // One connection's rate between hosts; infinity: a port's.
  double connection_bytes_per_s = std::numeric_limits<double>::infinity();
  // What an ingress port loses for each further connection that comes in at the same time: its
  // rate is divided by 1 + incast_loss * (k - 1). k is the most in one round of a channel.
  double incast_loss = 0.0;
};

// `world_size` hosts of one rank each, the same rate both ways everywhere.
Fabric uniform_fabric(int world_size, double bytes_per_s, double latency_s);

enum class Tier : std::uint8_t {
  automatic,    // recurrence where it is exact, else fluid, or batched where that is too slow;
                // and instead of each the closed form where it holds
  closed_form,  // refuses all but ranks that keep in step
  recurrence,   // refuses racks and background flows
  batched,      // fluid, with shares computed again only once some flows have changed
  fluid,
};

const char* to_string(Tier tier) noexcept;
Tier tier_from_string(const std::string& name);  // Throws Error{usage}

struct ReplayOptions {
  std::int64_t segment_bytes = 0;  // pipelining unit; 0: whole chunks
  std::int64_t unit_bytes = 1;     // chunks are cut at multiples of this
  Tier tier = Tier::automatic;
  // Tier batched: share of the flows that may begin or end before shares are computed again,
  // in [0, 1]; negative: by the number of messages.
  double batch_fraction = -1.0;
};

// How often a prepared collective was run, by how the answer was found.
struct Runs {
  std::int64_t closed_form = 0;
  std::int64_t replayed = 0;  // by the tier
  std::int64_t recalled = 0;  // the starts were known
};

namespace replay {
class Memory;
struct Lean;
struct Program;
struct Ring;
}  // namespace replay

// One collective, prepared: schedule, buffer, fabric. run() may then be called many times.
class Replay {
 public:
  // Throws Error{usage} if sizes disagree, a rate is not positive, or the tier cannot model
  // the fabric (the text says which).
  Replay(const Schedule& schedule, const Fabric& fabric, std::int64_t buffer_bytes,
         const ReplayOptions& options = {});
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // finish_s[r]: when rank r has received, reduced and sent all it must; ready_s[r] when it
  // enters the operation. Both [world_size], seconds from any origin.
  // Starts are rounded up to whole 2^-30 s (0.93 ns) after the earliest, and the answers to the
  // last few patterns of starts are kept: a job in a steady state computes one step only.
  // Throws Error{usage} on a wrong length, a time that is not finite, or uneven starts with
  // tier closed_form; Error{internal} if an
  // invariant breaks (a message lost, or a finish below the lower bound).
  std::vector<double> run(std::span<const double> ready_s) const;

  Tier tier() const noexcept { return tier_; }  // the tier really used
  const std::string& tier_reason() const noexcept { return tier_reason_; }
  // Seconds from a common start, where ranks that start together keep in step; used then by
  // tier automatic whatever tier() says.
  const std::optional<double>& closed_form_s() const noexcept { return closed_form_s_; }
  Runs runs() const;  // so far
  // Measured bound on how far the mean over runs is from tier fluid's, as a fraction; negative:
  // not known (a tier was asked for where it does not fit).
  double tier_error() const noexcept { return tier_error_; }
  const std::vector<std::int64_t>& bytes_sent() const noexcept { return bytes_sent_; }
  const std::vector<std::int64_t>& bytes_received() const noexcept { return bytes_received_; }
  std::int64_t messages() const noexcept { return messages_; }
  std::int64_t memory_bytes() const noexcept { return memory_bytes_; }  // held, about
  // No rank set can finish earlier than this after all are ready: the busiest port's
  // bytes/rate.
  double lower_bound_s() const noexcept { return lower_bound_s_; }

 private:
  std::vector<double> compute(std::span<const double> ready_s) const;

  std::unique_ptr<replay::Program> program_;
  std::unique_ptr<const replay::Ring> ring_;  // the same for a ring
  std::unique_ptr<const replay::Lean> lean_;  // instead of the program's messages, or null
  std::unique_ptr<replay::Memory> memory_;
  Tier tier_ = Tier::recurrence;
  std::string tier_reason_;
  std::optional<double> closed_form_s_;
  bool uses_closed_form_ = false;
  std::vector<std::int64_t> bytes_sent_;
  std::vector<std::int64_t> bytes_received_;
  std::int64_t messages_ = 0;
  std::int64_t memory_bytes_ = 0;
  double lower_bound_s_ = 0.0;
  double batch_fraction_ = 0.0;
  double tier_error_ = 0.0;
};

}  // namespace kf
