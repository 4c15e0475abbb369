// The recurrence tier: finish times by additions and maxima over ports; no shared links.
#include <algorithm>
#include <queue>

#include "replay/program.h"

namespace kf::replay {
namespace {

// How far down its queue a sender looks for a receiver that is free.
constexpr std::size_t kLookAhead = 8;
constexpr double kNever = -std::numeric_limits<double>::infinity();

std::size_t index(int i) {
  return static_cast<std::size_t>(i);
}

// A segment of a message that may join its egress port's queue at a known time.
struct Arrival {
  double at_s;
  std::int64_t serial;  // ties in the order of creation
  int message;
  int segment;
  bool operator>(const Arrival& other) const {
    return at_s != other.at_s ? at_s > other.at_s : serial > other.serial;
  }
};

struct PortFree {
  double at_s;
  int port;
  bool operator>(const PortFree& other) const {
    return at_s != other.at_s ? at_s > other.at_s : port > other.port;
  }
};

template <typename Event>
using Earliest = std::priority_queue<Event, std::vector<Event>, std::greater<>>;

// First come, first served: an egress port sends one message at a time, in the order in which
// they became ready; an ingress port takes messages in the order in which they left. A sender
// does not wait for a crowded receiver, so no port idles while it has work.
class PortQueues {
 public:
  PortQueues(const Program& program, std::span<const double> ready_s)
      : program_(program),
        ready_s_(ready_s),
        progress_(program),
        finish_s_(ready_s.begin(), ready_s.end()),
        port_free_(program.port_rate.size(), kNever),
        cpu_free_(ready_s.size(), kNever),
        queue_(program.port_rate.size()),
        armed_(program.port_rate.size(), 0) {}

  std::vector<double> run() {
    progress_.start([this](int segment, int slot) {
      opened(segment, slot, ready_s_[index(program_.slots[index(slot)].rank)]);
    });
    sort_first_arrivals();
    while (more_arrivals() || !ports_.empty()) {
      const bool arrival =
          ports_.empty() || (more_arrivals() && earliest().at_s <= ports_.top().at_s);
      if (arrival) {
        join(take_arrival());
      } else {
        const PortFree next = ports_.top();
        ports_.pop();
        serve(next);
      }
    }
    progress_.check_done();
    return std::move(finish_s_);
  }

 private:
  struct Waiting {
    int message;
    int segment;
    int ingress;
  };
  struct Queue {
    std::vector<Waiting> items;
    std::size_t head = 0;
  };

  // What may leave at the start is known at once and is half of all: sorted, not kept in a
  // heap.
  void sort_first_arrivals() {
    std::sort(first_.begin(), first_.end(),
              [](const Arrival& a, const Arrival& b) { return b > a; });
    started_ = true;
  }
  bool more_arrivals() const { return first_done_ < first_.size() || !arrivals_.empty(); }
  bool first_is_next() const {
    return first_done_ < first_.size() &&
           (arrivals_.empty() || arrivals_.top() > first_[first_done_]);
  }
  const Arrival& earliest() const {
    return first_is_next() ? first_[first_done_] : arrivals_.top();
  }
  Arrival take_arrival() {
    if (first_is_next()) return first_[first_done_++];
    const Arrival next = arrivals_.top();
    arrivals_.pop();
    return next;
  }

  void opened(int segment, int slot, double at_s) {
    double& when = progress_.latest_s(segment, slot);
    when = std::max(when, at_s);
    const Slot& s = program_.slots[index(slot)];
    // Arrivals of its own round do not hold a slot's sends back: at_s, not `when`.
    for (int i = s.sends_begin; i < s.sends_end; ++i) {
      const int message = program_.sends[index(i)];
      const double from =
          std::max(at_s, ready_s_[index(program_.messages[index(message)].dst)]);
      const Arrival arrival{from, serial_++, message, segment};
      if (started_) {
        arrivals_.push(arrival);
      } else {
        first_.push_back(arrival);
      }
    }
  }

  void join(const Arrival& arrival) {
    const Message& m = program_.messages[index(arrival.message)];
    const Connection& c = program_.connection(m);
    const int port = c.egress;
    const Waiting what{arrival.message, arrival.segment, c.ingress};
    Queue& queue = queue_[index(port)];
    if (!armed_[index(port)] && port_free_[index(port)] <= arrival.at_s) {
      send(arrival.at_s, what, true);
      return;
    }
    queue.items.push_back(what);
    if (armed_[index(port)]) return;
    armed_[index(port)] = 1;
    ports_.push({port_free_[index(port)], port});
  }

  void serve(const PortFree& event) {
    Queue& queue = queue_[index(event.port)];
    const bool held = choose(queue, event.at_s);
    send(event.at_s, queue.items[queue.head++], held);
    if (queue.head < queue.items.size()) {
      ports_.push({port_free_[index(event.port)], event.port});
      return;
    }
    queue.items.clear();
    queue.head = 0;
    armed_[index(event.port)] = 0;
  }

  // Brings the first message whose receiver is free to the head of the queue. Returns whether
  // the sender must wait for its receiver: it has nothing to send to anybody else.
  bool choose(Queue& queue, double at_s) {
    const auto receiver = [&](std::size_t i) { return index(queue.items[i].ingress); };
    const std::size_t end = std::min(queue.items.size(), queue.head + kLookAhead);
    bool alone = true;
    for (std::size_t i = queue.head; i < end; ++i) {
      if (receiver(i) != receiver(queue.head)) alone = false;
      if (port_free_[receiver(i)] > at_s) continue;
      std::rotate(queue.items.begin() + static_cast<std::ptrdiff_t>(queue.head),
                  queue.items.begin() + static_cast<std::ptrdiff_t>(i),
                  queue.items.begin() + static_cast<std::ptrdiff_t>(i + 1));
      return false;
    }
    return alone;
  }

  void send(double at_s, const Waiting& what, bool held) {
    const Message& m = program_.messages[index(what.message)];
    const int channel = program_.slots[index(m.dst_slot)].channel;
    const auto bytes = static_cast<double>(
        program_.segment_size(m, what.segment, progress_.segments(channel)));
    const Connection& c = program_.connection(m);
    double& out_free = port_free_[index(c.egress)];
    double& in_free = port_free_[index(c.ingress)];
    const double start = at_s + program_.fabric.message_s;
    out_free = start + bytes / program_.port_rate[index(c.egress)];
    in_free = std::max(out_free,
                       std::max(start, in_free) + bytes / program_.port_rate[index(c.ingress)]);
    if (held) out_free = in_free;
    double done = in_free + c.latency_s;
    if (m.reduce) {
      double& cpu = cpu_free_[index(m.dst)];
      cpu = std::max(cpu, done) + bytes / program_.fabric.reduce_bytes_per_s;
      done = cpu;
    }
    finish_s_[index(m.src)] = std::max(finish_s_[index(m.src)], out_free);
    finish_s_[index(m.dst)] = std::max(finish_s_[index(m.dst)], done);
    // A slot opens when the latest of the earlier arrivals is there: carry it along.
    double& seen = progress_.latest_s(what.segment, m.dst_slot);
    latest_s_ = seen = std::max(seen, done);
    progress_.arrive(what.segment, m, [this](int segment, int slot) {
      opened(segment, slot, latest_s_);
      latest_s_ = progress_.latest_s(segment, slot);
    });
  }

  const Program& program_;
  std::span<const double> ready_s_;
  Progress progress_;
  std::vector<double> finish_s_;
  std::vector<double> port_free_;
  std::vector<double> cpu_free_;
  std::vector<Queue> queue_;    // per egress port
  std::vector<char> armed_;     // per egress port: it has an entry in ports_
  std::vector<Arrival> first_;  // sorted once
  std::size_t first_done_ = 0;
  bool started_ = false;
  Earliest<Arrival> arrivals_;  // of all that opened later
  Earliest<PortFree> ports_;
  std::int64_t serial_ = 0;
  double latest_s_ = 0.0;
};

}  // namespace

// One lane. The messages of a round that meet at a port share it in proportion to their bytes,
// so each takes as long as its busier port does: the model of kf::cost when all are ready
// together. A rank enters its next round when its own sends have left and all has arrived.
std::vector<double> run_rounds(const Program& program, std::span<const double> ready_s) {
  std::vector<double> at(ready_s.begin(), ready_s.end());
  std::vector<double> next = at;
  std::vector<double> port_free(program.port_rate.size(), kNever);
  std::vector<double> port_next = port_free;
  for (std::size_t round = 0; round + 1 < program.round_begin.size(); ++round) {
    const auto first = index(program.round_begin[round]);
    const auto end = index(program.round_begin[round + 1]);
    for (std::size_t i = first; i < end; ++i) {
      const Message& m = program.messages[i];
      const Connection& c = program.connection(m);
      const Load& load = program.loads[i];
      const double start = std::max(at[index(m.src)], ready_s[index(m.dst)]);
      const double sent = std::max(start, port_free[index(c.egress)]) + load.out_s;
      const double streamed =
          std::max(sent, std::max(start, port_free[index(c.ingress)]) + load.in_s);
      port_next[index(c.egress)] = std::max(port_next[index(c.egress)], sent);
      port_next[index(c.ingress)] = std::max(port_next[index(c.ingress)], streamed);
      next[index(m.src)] = std::max(next[index(m.src)], sent);
      next[index(m.dst)] = std::max(next[index(m.dst)], streamed + c.latency_s);
    }
    for (std::size_t i = first; i < end; ++i) {
      next[index(program.messages[i].dst)] += program.loads[i].reduce_s;
    }
    for (std::size_t i = first; i < end; ++i) {
      const Message& m = program.messages[i];
      const Connection& c = program.connection(m);
      port_free[index(c.egress)] = port_next[index(c.egress)];
      port_free[index(c.ingress)] = port_next[index(c.ingress)];
      at[index(m.src)] = next[index(m.src)];
      at[index(m.dst)] = next[index(m.dst)];
    }
  }
  return at;
}

std::vector<double> run_ports(const Program& program, std::span<const double> ready_s) {
  return PortQueues(program, ready_s).run();
}

}  // namespace kf::replay
