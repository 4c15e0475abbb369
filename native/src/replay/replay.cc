#include "kf/replay.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "kf/error.h"
#include "replay/closed.h"
#include "replay/lean.h"
#include "replay/program.h"
#include "replay/ring.h"

namespace kf {
namespace {

// Rounding of sums of thousands of terms; far below anything the model means.
constexpr double kRounding = 1e-9;
constexpr double kQuantum_s = 0x1p-30;  // 0.93 ns

bool has_shared_links(const Fabric& net) {
  const bool racks = !net.rack_of_host.empty() && !std::isinf(net.rack_bytes_per_s);
  return racks || !net.background.empty();
}

// Up to this many messages the fluid tier takes milliseconds.
constexpr std::int64_t kFluidMessages = 1500;
// The batched tier re-shares after this part of the flows has changed; the errors are measured
// (docs/simulator.md, tests/simulation/test_tiers.py).
constexpr std::int64_t kManyMessages = 30'000;
constexpr double kFewBatch = 0.01, kFewError = 0.015;
constexpr double kManyBatch = 0.05, kManyError = 0.03;
// About what a message and a connection take: message, load, two slots; connection and path.
constexpr std::int64_t kMessageBytes = 130, kConnectionBytes = 60;
// Kept answers per Replay.
constexpr std::size_t kKeptRuns = 32;

struct Choice {
  Tier tier;
  std::string reason;
};

// With one connection a port, first come, first served at the ports is what connections do.
bool one_connection_a_port(const replay::Program& program) {
  std::vector<int> uses(program.port_rate.size(), 0);
  for (const auto& path : program.paths) {
    for (const int link : path) {
      if (link >= 0 && static_cast<std::size_t>(link) < uses.size() &&
          ++uses[static_cast<std::size_t>(link)] > 1) {
        return false;
      }
    }
  }
  return true;
}

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
  if (!shared && one_connection_a_port(program)) {
    return {Tier::recurrence, "each port serves one connection"};
  }
  const std::string why =
      shared ? "racks or background flows share links" : "connections share ports";
  if (messages <= kFluidMessages) return {Tier::fluid, why};
  return {Tier::batched, why + ", and " + std::to_string(messages) + " messages are many"};
}

double error_of(const replay::Program& program, const Fabric& net, Tier tier,
                double batch_fraction) {
  if (tier == Tier::fluid || tier == Tier::closed_form) return 0.0;
  if (tier == Tier::recurrence) {
    return !has_shared_links(net) && one_connection_a_port(program) ? 0.0 : -1.0;
  }
  return batch_fraction <= kFewBatch    ? kFewError
         : batch_fraction <= kManyBatch ? kManyError
                                        : -1;
}

}  // namespace

// The last few runs: starts, relative to the earliest and rounded, and what came of them.
class replay::Memory {
 public:
  using Key = std::vector<std::int64_t>;

  std::optional<std::vector<double>> find(const Key& key) {
    const std::lock_guard lock(mutex_);
    for (const auto& [starts, finish_s] : kept_) {
      if (starts != key) continue;
      ++runs_.recalled;
      return finish_s;
    }
    return std::nullopt;
  }

  void keep(Key key, std::vector<double> finish_s) {
    const std::lock_guard lock(mutex_);
    ++runs_.replayed;
    if (kept_.size() == kKeptRuns) kept_.pop_front();
    kept_.emplace_back(std::move(key), std::move(finish_s));
  }

  void count_closed_form() {
    const std::lock_guard lock(mutex_);
    ++runs_.closed_form;
  }

  Runs runs() const {
    const std::lock_guard lock(mutex_);
    return runs_;
  }

 private:
  mutable std::mutex mutex_;
  Runs runs_;
  std::deque<std::pair<Key, std::vector<double>>> kept_;
};

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
    case Tier::closed_form:
      return "closed_form";
    case Tier::recurrence:
      return "recurrence";
    case Tier::batched:
      return "batched";
    case Tier::fluid:
      return "fluid";
  }
  return "unknown";
}

Tier tier_from_string(const std::string& name) {
  for (const Tier tier :
       {Tier::automatic, Tier::closed_form, Tier::recurrence, Tier::batched, Tier::fluid}) {
    if (name == to_string(tier)) return tier;
  }
  throw Error(ErrorCode::usage,
              "tier must be auto, closed_form, recurrence, batched or fluid, got " + name);
}

Replay::Replay(const Schedule& schedule, const Fabric& fabric, std::int64_t buffer_bytes,
               const ReplayOptions& options)
    : program_(std::make_unique<replay::Program>(
          replay::make_program(schedule, fabric, buffer_bytes, options))),
      memory_(std::make_unique<replay::Memory>()),
      bytes_sent_(static_cast<std::size_t>(schedule.world_size), 0),
      bytes_received_(static_cast<std::size_t>(schedule.world_size), 0) {
  std::vector<double> port_s(program_->port_rate.size(), 0.0);
  for (const replay::Message& m : program_->messages) {
    bytes_sent_[static_cast<std::size_t>(m.src)] += m.bytes;
    bytes_received_[static_cast<std::size_t>(m.dst)] += m.bytes;
    const replay::Connection& c = program_->connection(m);
    for (const int port : {c.egress, c.ingress}) {
      const auto p = static_cast<std::size_t>(port);
      port_s[p] += static_cast<double>(m.bytes) / program_->port_rate[p];
    }
    const int channel = program_->slots[static_cast<std::size_t>(m.dst_slot)].channel;
    messages_ += program_->segments[static_cast<std::size_t>(channel)];
  }
  closed_form_s_ = replay::closed_form(*program_);
  if (options.tier == Tier::closed_form && !closed_form_s_) {
    throw Error(ErrorCode::usage,
                "tier closed_form needs equal ports that nobody shares, whole chunks of one "
                "size, and rounds in which each rank sends and receives one; use tier auto");
  }
  uses_closed_form_ = options.tier == Tier::automatic || options.tier == Tier::closed_form;
  const Choice choice = choose(fabric, *program_, messages_, options.tier);
  batch_fraction_ = options.batch_fraction >= 0.0 ? options.batch_fraction
                    : messages_ <= kManyMessages  ? kFewBatch
                                                  : kManyBatch;
  tier_ = choice.tier;
  tier_error_ = error_of(*program_, fabric, tier_, batch_fraction_);
  tier_reason_ = choice.reason;
  if (!port_s.empty()) lower_bound_s_ = *std::max_element(port_s.begin(), port_s.end());
  if (tier_ == Tier::recurrence && tier_error_ == 0.0 && program_->one_lane()) {
    if (std::optional<replay::Lean> lean = replay::make_lean(*program_)) {
      if (std::optional<replay::Ring> ring = replay::make_ring(*lean)) {
        ring_ = std::make_unique<const replay::Ring>(*std::move(ring));
      } else {
        lean_ = std::make_unique<const replay::Lean>(*std::move(lean));
      }
      program_->drop_messages();
    }
  }
  const auto cells = static_cast<std::int64_t>(program_->messages.size());
  memory_bytes_ = (ring_ ? 0 : 8 * messages_) + cells * kMessageBytes +
                  static_cast<std::int64_t>(program_->connections.size()) * kConnectionBytes;
}

Replay::~Replay() = default;

Runs Replay::runs() const {
  return memory_->runs();
}

std::vector<double> Replay::run(std::span<const double> ready_s) const {
  if (ready_s.size() != static_cast<std::size_t>(program_->world_size)) {
    throw Error(ErrorCode::usage,
                "ready_s must have world_size = " + std::to_string(program_->world_size) +
                    " entries, got " + std::to_string(ready_s.size()));
  }
  for (const double ready : ready_s) {
    if (!std::isfinite(ready)) throw Error(ErrorCode::usage, "ready_s must be finite");
  }
  const double first_s = *std::min_element(ready_s.begin(), ready_s.end());
  replay::Memory::Key key(ready_s.size());
  std::vector<double> starts_s(ready_s.size());
  for (std::size_t rank = 0; rank < key.size(); ++rank) {
    key[rank] = static_cast<std::int64_t>(std::ceil((ready_s[rank] - first_s) / kQuantum_s));
    starts_s[rank] = static_cast<double>(key[rank]) * kQuantum_s;
  }
  const bool together = std::all_of(key.begin(), key.end(), [](auto k) { return k == 0; });
  if (together && uses_closed_form_ && closed_form_s_) {
    memory_->count_closed_form();
    return std::vector<double>(ready_s.size(), first_s + *closed_form_s_);
  }
  if (tier_ == Tier::closed_form) {
    throw Error(ErrorCode::usage, "tier closed_form needs ranks that start together");
  }
  std::optional<std::vector<double>> finish_s = memory_->find(key);
  if (!finish_s) {
    finish_s = compute(starts_s);
    memory_->keep(std::move(key), *finish_s);
  }
  for (double& finish : *finish_s) finish += first_s;
  return *std::move(finish_s);
}

std::vector<double> Replay::compute(std::span<const double> ready_s) const {
  std::vector<double> finish_s;
  if (tier_ == Tier::fluid) {
    finish_s = replay::run_fluid(*program_, ready_s);
  } else if (tier_ == Tier::batched) {
    finish_s = replay::run_batched(*program_, ready_s, batch_fraction_);
  } else if (ring_) {
    finish_s = replay::run_ring(*ring_, ready_s);
  } else if (lean_) {
    finish_s = replay::run_lean(*lean_, ready_s);
  } else {
    finish_s = program_->one_lane() ? replay::run_rounds(*program_, ready_s)
                                    : replay::run_ports(*program_, ready_s);
  }
  const double last = *std::max_element(finish_s.begin(), finish_s.end());
  // Between two solutions the batched tier may load a link a little too much.
  const double slack = tier_ == Tier::batched ? 0.5 * batch_fraction_ : 0.0;
  if (last < lower_bound_s_ * (1.0 - kRounding - slack) - kRounding) {
    throw Error(ErrorCode::internal, "replay of " + std::to_string(last) +
                                         " s is below the lower bound of " +
                                         std::to_string(lower_bound_s_) + " s");
  }
  return finish_s;
}

}  // namespace kf
