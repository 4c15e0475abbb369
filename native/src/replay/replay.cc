#include "kf/replay.h"

#include <algorithm>
#include <cmath>

#include "kf/error.h"
#include "replay/program.h"

namespace kf {
namespace {

// Rounding of sums of thousands of terms; far below anything the model means.
constexpr double kRounding = 1e-9;

bool has_shared_links(const Fabric& net) {
  const bool racks = !net.rack_of_host.empty() && !std::isinf(net.rack_bytes_per_s);
  return racks || !net.background.empty();
}

// Several lanes make connections of one port overlap for long, which first come, first served
// describes only roughly; up to this many messages the fluid tier is fast enough instead.
constexpr std::int64_t kFluidMessages = 1500;

struct Choice {
  Tier tier;
  const char* reason;
};

// Racks and background flows are links that ports do not describe.
Choice choose(const Fabric& net, const replay::Program& program, std::int64_t messages,
              Tier wanted) {
  const bool shared = has_shared_links(net);
  if (wanted == Tier::recurrence && shared) {
    throw Error(ErrorCode::usage,
                "tier recurrence knows ports only, but this network has racks or background "
                "flows; use tier fluid");
  }
  if (wanted != Tier::automatic) return {wanted, "asked for"};
  if (shared) return {Tier::fluid, "racks or background flows share links"};
  if (!program.one_lane() && messages <= kFluidMessages) {
    return {Tier::fluid, "several lanes share ports, and their messages are few"};
  }
  return {Tier::recurrence, "only ports are shared"};
}

}  // namespace

Fabric uniform_fabric(int world_size, double bytes_per_s, double latency_s) {
  if (world_size < 1) {
    throw Error(ErrorCode::usage, "world_size must be >= 1, got " + std::to_string(world_size));
  }
  Fabric net;
  const auto hosts = static_cast<std::size_t>(world_size);
  for (int rank = 0; rank < world_size; ++rank) net.host_of_rank.push_back(rank);
  net.egress_bytes_per_s.assign(hosts, bytes_per_s);
  net.ingress_bytes_per_s.assign(hosts, bytes_per_s);
  net.latency_s = latency_s;
  return net;
}

const char* to_string(Tier tier) noexcept {
  switch (tier) {
    case Tier::automatic:
      return "auto";
    case Tier::recurrence:
      return "recurrence";
    case Tier::fluid:
      return "fluid";
  }
  return "unknown";
}

Tier tier_from_string(const std::string& name) {
  for (const Tier tier : {Tier::automatic, Tier::recurrence, Tier::fluid}) {
    if (name == to_string(tier)) return tier;
  }
  throw Error(ErrorCode::usage, "tier must be auto, recurrence or fluid, got " + name);
}

Replay::Replay(const Schedule& schedule, const Fabric& fabric, std::int64_t buffer_bytes,
               const ReplayOptions& options)
    : program_(std::make_unique<const replay::Program>(
          replay::make_program(schedule, fabric, buffer_bytes, options))),
      bytes_sent_(static_cast<std::size_t>(schedule.world_size), 0),
      bytes_received_(static_cast<std::size_t>(schedule.world_size), 0) {
  std::vector<double> port_s(program_->port_rate.size(), 0.0);
  for (const replay::Message& m : program_->messages) {
    bytes_sent_[static_cast<std::size_t>(m.src)] += m.bytes;
    bytes_received_[static_cast<std::size_t>(m.dst)] += m.bytes;
    for (const int port : {m.egress, m.ingress}) {
      const auto p = static_cast<std::size_t>(port);
      port_s[p] += static_cast<double>(m.bytes) / program_->port_rate[p];
    }
    const int channel = program_->slots[static_cast<std::size_t>(m.dst_slot)].channel;
    messages_ += program_->segments[static_cast<std::size_t>(channel)];
  }
  const Choice choice = choose(fabric, *program_, messages_, options.tier);
  tier_ = choice.tier;
  tier_reason_ = choice.reason;
  if (!port_s.empty()) lower_bound_s_ = *std::max_element(port_s.begin(), port_s.end());
}

Replay::~Replay() = default;

std::vector<double> Replay::run(std::span<const double> ready_s) const {
  if (ready_s.size() != static_cast<std::size_t>(program_->world_size)) {
    throw Error(ErrorCode::usage,
                "ready_s must have world_size = " + std::to_string(program_->world_size) +
                    " entries, got " + std::to_string(ready_s.size()));
  }
  for (const double ready : ready_s) {
    if (!std::isfinite(ready)) throw Error(ErrorCode::usage, "ready_s must be finite");
  }
  std::vector<double> finish_s = tier_ == Tier::fluid   ? replay::run_fluid(*program_, ready_s)
                                 : program_->one_lane() ? replay::run_rounds(*program_, ready_s)
                                                        : replay::run_ports(*program_, ready_s);
  const double first = *std::min_element(ready_s.begin(), ready_s.end());
  const double last = *std::max_element(finish_s.begin(), finish_s.end());
  if (last - first < lower_bound_s_ * (1.0 - kRounding) - kRounding) {
    throw Error(ErrorCode::internal, "replay of " + std::to_string(last - first) +
                                         " s is below the lower bound of " +
                                         std::to_string(lower_bound_s_) + " s");
  }
  return finish_s;
}

}  // namespace kf
