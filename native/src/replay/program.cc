#include "replay/program.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include "kf/error.h"
#include "replay/links.h"

namespace kf::replay {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::usage, text);
}

void check_rate(double value, const char* name) {
  if (!(value > 0.0)) refuse(std::string(name) + " must be > 0, got " + std::to_string(value));
}

void check_time(double value, const char* name) {
  if (!(value >= 0.0) || std::isinf(value)) {
    refuse(std::string(name) + " must be finite and >= 0, got " + std::to_string(value));
  }
}

void check_host(int host, std::size_t hosts, const char* name) {
  if (host < 0 || static_cast<std::size_t>(host) >= hosts) {
    refuse(std::string(name) + " must be in [0, " + std::to_string(hosts) + "), got " +
           std::to_string(host));
  }
}

void check(const Schedule& schedule, const Fabric& net, std::int64_t buffer_bytes,
           const ReplayOptions& options) {
  const std::size_t hosts = net.egress_bytes_per_s.size();
  if (net.host_of_rank.size() != static_cast<std::size_t>(schedule.world_size)) {
    refuse("host_of_rank must have world_size = " + std::to_string(schedule.world_size) +
           " entries, got " + std::to_string(net.host_of_rank.size()));
  }
  if (net.ingress_bytes_per_s.size() != hosts) {
    refuse("egress and ingress rates must be as many, got " + std::to_string(hosts) + " and " +
           std::to_string(net.ingress_bytes_per_s.size()));
  }
  for (const int host : net.host_of_rank) check_host(host, hosts, "host_of_rank");
  for (const double rate : net.egress_bytes_per_s) check_rate(rate, "egress_bytes_per_s");
  for (const double rate : net.ingress_bytes_per_s) check_rate(rate, "ingress_bytes_per_s");
  check_rate(net.reduce_bytes_per_s, "reduce_bytes_per_s");
  check_rate(net.local_bytes_per_s, "local_bytes_per_s");
  check_rate(net.rack_bytes_per_s, "rack_bytes_per_s");
  check_rate(net.connection_bytes_per_s, "connection_bytes_per_s");
  check_time(net.incast_loss, "incast_loss");
  check_time(net.latency_s, "latency_s");
  check_time(net.message_s, "message_s");
  check_time(net.local_latency_s, "local_latency_s");
  if (!net.rack_of_host.empty() && net.rack_of_host.size() != hosts) {
    refuse("rack_of_host must be empty or have " + std::to_string(hosts) + " entries, got " +
           std::to_string(net.rack_of_host.size()));
  }
  for (const int rack : net.rack_of_host) {
    if (rack < 0) refuse("rack_of_host must be >= 0, got " + std::to_string(rack));
  }
  for (const BackgroundFlows& flows : net.background) {
    if (flows.count < 1)
      refuse("background count must be >= 1, got " + std::to_string(flows.count));
    if (flows.src_host != -1) check_host(flows.src_host, hosts, "background src_host");
    if (flows.dst_host != -1) check_host(flows.dst_host, hosts, "background dst_host");
  }
  if (buffer_bytes < 0)
    refuse("buffer_bytes must be >= 0, got " + std::to_string(buffer_bytes));
  if (options.segment_bytes < 0) {
    refuse("segment_bytes must be >= 0, got " + std::to_string(options.segment_bytes));
  }
  if (options.unit_bytes < 1) {
    refuse("unit_bytes must be >= 1, got " + std::to_string(options.unit_bytes));
  }
}

// Where each chunk begins, in bytes, and where the last one ends: whole units are shared out,
// the tail that fills no unit goes with the last chunk.
std::vector<std::int64_t> chunk_edges(int chunk_count, std::int64_t buffer_bytes,
                                      std::int64_t unit_bytes) {
  std::vector<std::int64_t> edges;
  edges.reserve(static_cast<std::size_t>(chunk_count) + 1);
  for (int chunk = 0; chunk < chunk_count; ++chunk) {
    edges.push_back(chunk_range(buffer_bytes / unit_bytes, chunk_count, chunk).begin *
                    unit_bytes);
  }
  edges.push_back(buffer_bytes);
  return edges;
}

struct Ports {
  int hosts;
  int world_size;
  int egress(const Fabric& net, int src, bool local) const {
    return local ? 2 * hosts + src : net.host_of_rank[static_cast<std::size_t>(src)];
  }
  int ingress(const Fabric& net, int dst, bool local) const {
    return local ? 2 * hosts + world_size + dst
                 : hosts + net.host_of_rank[static_cast<std::size_t>(dst)];
  }
};

void check_transfer(const Transfer& t, const Schedule& schedule) {
  const auto bad_rank = [&](int rank) { return rank < 0 || rank >= schedule.world_size; };
  if (bad_rank(t.src) || bad_rank(t.dst) || t.src == t.dst || t.chunk_count < 1 ||
      t.chunk_begin < 0 || t.chunk_begin > schedule.chunk_count - t.chunk_count) {
    refuse("schedule " + schedule.name + " has a malformed transfer " + std::to_string(t.src) +
           " -> " + std::to_string(t.dst) + "; validate() says what is wrong");
  }
}

// Numbers by receiver: a ring has one, a clique all, so few entries are searched, many hashed.
class Receivers {
 public:
  int& operator[](int dst) {
    if (last_ < few_.size() && few_[last_].first == dst) return few_[last_].second;
    for (last_ = 0; last_ < few_.size(); ++last_) {
      if (few_[last_].first == dst) return few_[last_].second;
    }
    if (few_.size() < 8) return few_.emplace_back(dst, 0).second;
    return many_[dst];
  }

 private:
  std::vector<std::pair<int, int>> few_;
  std::size_t last_ = 0;
  std::unordered_map<int, int> many_;
};

// Messages of one channel, and the slots of its ranks.
class ChannelWriter {
 public:
  ChannelWriter(Program& program, const Schedule& schedule, std::int64_t buffer_bytes,
                std::int64_t unit_bytes)
      : program_(program),
        schedule_(schedule),
        edges_(chunk_edges(schedule.chunk_count, buffer_bytes, unit_bytes)),
        ports_{static_cast<int>(program.fabric.egress_bytes_per_s.size()), schedule.world_size},
        busy_s_(program.port_rate.size(), 0.0),
        reduced_s_(static_cast<std::size_t>(schedule.world_size), 0.0),
        connection_(static_cast<std::size_t>(schedule.world_size)),
        last_slot_(static_cast<std::size_t>(schedule.world_size), -1),
        slot_in_round_(static_cast<std::size_t>(schedule.world_size), -1) {}

  void write(int channel) {
    std::fill(last_slot_.begin(), last_slot_.end(), -1);
    std::int64_t largest = 0;
    for (const Round& round : schedule_.channels[static_cast<std::size_t>(channel)].rounds) {
      std::fill(slot_in_round_.begin(), slot_in_round_.end(), -1);
      const auto first = program_.messages.size();
      program_.round_begin.push_back(static_cast<int>(first));
      for (const Transfer& transfer : round) {
        check_transfer(transfer, schedule_);
        largest = std::max(largest, write_message(transfer, channel));
      }
      write_sends(first);
      write_loads(first);
    }
    const std::int64_t segment = program_.segment_bytes;
    const std::int64_t count = segment == 0 ? 1 : (largest + segment - 1) / segment;
    program_.segments.push_back(static_cast<int>(std::max<std::int64_t>(1, count)));
  }

 private:
  std::int64_t write_message(const Transfer& t, int channel) {
    const Fabric& net = program_.fabric;
    const bool local = net.host_of_rank[static_cast<std::size_t>(t.src)] ==
                       net.host_of_rank[static_cast<std::size_t>(t.dst)];
    const int dst_slot = slot(t.dst, channel);
    ++program_.slots[static_cast<std::size_t>(dst_slot)].receives;
    slot(t.src, channel);
    int& connection = connection_[static_cast<std::size_t>(t.src)][t.dst];
    if (connection == 0) {  // numbered from 1 here, so that 0 means new
      program_.connections.push_back({t.src, t.dst, ports_.egress(net, t.src, local),
                                      ports_.ingress(net, t.dst, local),
                                      local ? net.local_latency_s : net.latency_s, local});
      connection = static_cast<int>(program_.connections.size());
    }
    const std::int64_t bytes = edges_[static_cast<std::size_t>(t.chunk_begin + t.chunk_count)] -
                               edges_[static_cast<std::size_t>(t.chunk_begin)];
    program_.messages.push_back(
        {bytes, t.src, t.dst, connection - 1, dst_slot, t.combine == Combine::reduce});
    return bytes;
  }

  int slot(int rank, int channel) {
    int& here = slot_in_round_[static_cast<std::size_t>(rank)];
    if (here >= 0) return here;
    here = static_cast<int>(program_.slots.size());
    program_.slots.push_back({rank, channel, -1, 0, 0, 0, 0});
    int& last = last_slot_[static_cast<std::size_t>(rank)];
    if (last < 0) {
      program_.first_slot[static_cast<std::size_t>(channel * schedule_.world_size + rank)] =
          here;
    } else {
      program_.slots[static_cast<std::size_t>(last)].next = here;
    }
    last = here;
    return here;
  }

  // Groups this round's messages by sender, in the order they stand in.
  void write_sends(std::size_t first) {
    std::vector<int>& round = of_round_;
    round.clear();
    for (std::size_t i = first; i < program_.messages.size(); ++i) {
      round.push_back(static_cast<int>(i));
    }
    const auto sender = [this](int i) {
      return program_.messages[static_cast<std::size_t>(i)].src;
    };
    const auto earlier = [&](int a, int b) { return sender(a) < sender(b); };
    if (!std::is_sorted(round.begin(), round.end(), earlier)) {
      std::stable_sort(round.begin(), round.end(), earlier);
    }
    for (std::size_t i = 0; i < round.size();) {
      const int rank = sender(round[i]);
      Slot& here =
          program_
              .slots[static_cast<std::size_t>(slot_in_round_[static_cast<std::size_t>(rank)])];
      here.sends_begin = static_cast<int>(program_.sends.size());
      while (i < round.size() && sender(round[i]) == rank) program_.sends.push_back(round[i++]);
      here.sends_end = static_cast<int>(program_.sends.size());
    }
  }

  // What each port carries and each rank reduces in this round, in seconds.
  void write_loads(std::size_t first) {
    const Fabric& net = program_.fabric;
    const auto of_round = std::span(program_.messages).subspan(first);
    const auto at = [](int i) { return static_cast<std::size_t>(i); };
    for (const Message& m : of_round) {
      const auto bytes = static_cast<double>(m.bytes);
      const Connection& c = program_.connection(m);
      busy_s_[at(c.egress)] += bytes / program_.port_rate[at(c.egress)] + net.message_s;
      busy_s_[at(c.ingress)] += bytes / program_.port_rate[at(c.ingress)];
      if (m.reduce) reduced_s_[at(m.dst)] += bytes / net.reduce_bytes_per_s;
    }
    for (const Message& m : of_round) {
      const Connection& c = program_.connection(m);
      program_.loads.push_back({busy_s_[at(c.egress)], busy_s_[at(c.ingress)],
                                std::exchange(reduced_s_[at(m.dst)], 0.0)});
    }
    for (const Message& m : of_round) {
      const Connection& c = program_.connection(m);
      for (const int port : {c.egress, c.ingress}) busy_s_[at(port)] = 0.0;
    }
  }

  Program& program_;
  const Schedule& schedule_;
  std::vector<std::int64_t> edges_;
  Ports ports_;
  std::vector<double> busy_s_;         // per port, of one round
  std::vector<double> reduced_s_;      // per rank, of one round
  std::vector<Receivers> connection_;  // per sender
  std::vector<int> last_slot_;
  std::vector<int> slot_in_round_;
  std::vector<int> of_round_;  // scratch of write_sends
};

// The most messages of one round and channel that a host sends to, or takes from, other hosts.
std::vector<int> fans(const Schedule& schedule, const Fabric& net) {
  const std::size_t hosts = net.egress_bytes_per_s.size();
  std::vector<int> most(2 * hosts, 0), now(2 * hosts, 0);
  for (const Channel& channel : schedule.channels) {
    for (const Round& round : channel.rounds) {
      std::fill(now.begin(), now.end(), 0);
      for (const Transfer& t : round) {
        check_transfer(t, schedule);
        const auto src =
            static_cast<std::size_t>(net.host_of_rank[static_cast<std::size_t>(t.src)]);
        const auto dst =
            static_cast<std::size_t>(net.host_of_rank[static_cast<std::size_t>(t.dst)]);
        if (src == dst) continue;
        most[src] = std::max(most[src], ++now[src]);
        most[hosts + dst] = std::max(most[hosts + dst], ++now[hosts + dst]);
      }
    }
  }
  return most;
}

// Rates of the hosts' ports as the schedule's own connections find them (Fabric's last fields).
std::vector<double> rates_in_use(const Schedule& schedule, const Fabric& net) {
  std::vector<double> rates = net.egress_bytes_per_s;
  rates.insert(rates.end(), net.ingress_bytes_per_s.begin(), net.ingress_bytes_per_s.end());
  if (std::isinf(net.connection_bytes_per_s) && net.incast_loss == 0.0) return rates;
  const std::vector<int> most = fans(schedule, net);
  const std::size_t hosts = net.egress_bytes_per_s.size();
  for (std::size_t port = 0; port < rates.size(); ++port) {
    const double count = std::max(most[port], 1);
    if (port >= hosts) rates[port] /= 1.0 + net.incast_loss * (count - 1.0);
    rates[port] = std::min(rates[port], count * net.connection_bytes_per_s);
  }
  return rates;
}

}  // namespace

Program make_program(const Schedule& schedule, const Fabric& fabric, std::int64_t buffer_bytes,
                     const ReplayOptions& options) {
  check(schedule, fabric, buffer_bytes, options);
  Program program;
  program.world_size = schedule.world_size;
  program.channels = static_cast<int>(schedule.channels.size());
  program.segment_bytes = options.segment_bytes;
  program.fabric = fabric;
  program.first_slot.assign(
      schedule.channels.size() * static_cast<std::size_t>(schedule.world_size), -1);
  program.port_rate = rates_in_use(schedule, fabric);
  program.port_rate.insert(program.port_rate.end(),
                           2 * static_cast<std::size_t>(schedule.world_size),
                           fabric.local_bytes_per_s);
  std::size_t transfers = 0;
  for (const Channel& channel : schedule.channels) {
    for (const Round& round : channel.rounds) transfers += round.size();
  }
  program.messages.reserve(transfers);
  program.loads.reserve(transfers);
  program.sends.reserve(transfers);
  program.slots.reserve(2 * transfers);
  ChannelWriter writer(program, schedule, buffer_bytes, options.unit_bytes);
  for (int channel = 0; channel < program.channels; ++channel) writer.write(channel);
  program.round_begin.push_back(static_cast<int>(program.messages.size()));
  std::int64_t cells = 0;
  for (Slot& slot : program.slots) {
    slot.cell = cells;
    cells += program.segments[static_cast<std::size_t>(slot.channel)];
  }
  const Links links(program);
  program.paths.assign(program.connections.size(), {-1, -1, -1, -1});
  for (std::size_t c = 0; c < program.connections.size(); ++c) {
    const std::vector<int> path = links.path(program.connections[c]);
    std::copy(path.begin(), path.end(), program.paths[c].begin());
  }
  return program;
}

Progress::Progress(const Program& program) : program_(program) {
  for (const Slot& slot : program.slots) {
    cells_.resize(cells_.size() + static_cast<std::size_t>(segments(slot.channel)),
                  {.waiting = slot.receives});
  }
}

void Progress::check_done() const {
  for (std::size_t slot = 0; slot < program_.slots.size(); ++slot) {
    const Slot& s = program_.slots[slot];
    for (int segment = 0; segment < segments(s.channel); ++segment) {
      const int waiting = cells_[cell_of(segment, static_cast<int>(slot))].waiting;
      if (waiting == 0) continue;
      throw Error(ErrorCode::internal, "replay stopped while rank " + std::to_string(s.rank) +
                                           " waits for " + std::to_string(waiting) +
                                           " messages of channel " + std::to_string(s.channel));
    }
  }
}

}  // namespace kf::replay
