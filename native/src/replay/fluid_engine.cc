// The fluid tier: connections share every link max-min fairly (kf/fluid.h).
#include <algorithm>
#include <deque>
#include <queue>
#include <string>

#include "kf/error.h"
#include "kf/fluid.h"
#include "replay/links.h"
#include "replay/program.h"

namespace kf::replay {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t index(int i) {
  return static_cast<std::size_t>(i);
}

struct Parcel {  // one segment of one message
  int message;
  int segment;
};

// What happens at a known time: a parcel may leave, or has arrived and been reduced.
struct Timer {
  double at_s;
  bool leaves;  // arrivals first, so that what they open joins the same instant
  std::int64_t serial;
  Parcel parcel;
  bool operator>(const Timer& other) const {
    if (at_s != other.at_s) return at_s > other.at_s;
    if (leaves != other.leaves) return leaves;
    return serial > other.serial;
  }
};

// Messages of one connection follow each other in the order they became ready; different
// connections share the links they cross.
class FluidReplay {
 public:
  FluidReplay(const Program& program, std::span<const double> ready_s)
      : program_(program),
        ready_s_(ready_s),
        progress_(program),
        links_(program),
        network_(links_.rates()),
        finish_s_(ready_s.begin(), ready_s.end()),
        cpu_free_(ready_s.size(), -kInfinity),
        waiting_(program.connections.size()),
        busy_(program.connections.size(), 0) {}

  std::vector<double> run() {
    const double begin_s = *std::min_element(ready_s_.begin(), ready_s_.end());
    now_s_ = begin_s;
    start_background();
    progress_.start([this](int segment, int slot) { opened(segment, slot); });
    while (true) {
      const double flow_s = network_.next_completion_s(now_s_);
      const double timer_s = timers_.empty() ? kInfinity : timers_.top().at_s;
      const double next_s = std::min(flow_s, timer_s);
      if (next_s == kInfinity) break;
      now_s_ = std::max(now_s_, next_s);
      if (flow_s <= timer_s) finish_flows();
      while (!timers_.empty() && timers_.top().at_s <= now_s_) fire();
    }
    progress_.check_done();
    return std::move(finish_s_);
  }

 private:
  void start_background() {
    for (const BackgroundFlows& flows : program_.fabric.background) {
      const auto path = links_.path(flows);
      if (path.empty()) continue;
      for (int i = 0; i < flows.count; ++i) network_.add(path, kInfinity, now_s_);
    }
  }

  void opened(int segment, int slot_index) {
    const Slot& slot = program_.slots[index(slot_index)];
    for (int i = slot.sends_begin; i < slot.sends_end; ++i) {
      const int message = program_.sends[index(i)];
      const Message& m = program_.messages[index(message)];
      const double from = std::max({now_s_, ready_s_[index(m.src)], ready_s_[index(m.dst)]});
      timers_.push({from + program_.fabric.message_s, true, serial_++, {message, segment}});
    }
  }

  void fire() {
    const Timer timer = timers_.top();
    timers_.pop();
    const Message& m = program_.messages[index(timer.parcel.message)];
    if (timer.leaves) {
      waiting_[index(m.connection)].push_back(timer.parcel);
      if (!busy_[index(m.connection)]) send_next(m.connection);
      return;
    }
    finish_s_[index(m.dst)] = std::max(finish_s_[index(m.dst)], now_s_);
    progress_.arrive(timer.parcel.segment, m,
                     [this](int segment, int slot) { opened(segment, slot); });
  }

  double bytes_of(const Parcel& parcel) const {
    const Message& m = program_.messages[index(parcel.message)];
    const int channel = program_.slots[index(m.dst_slot)].channel;
    return static_cast<double>(
        program_.segment_size(m, parcel.segment, progress_.segments(channel)));
  }

  // Starts the connection's next parcel. One without bytes, or without a limiting link, takes
  // no time on the wire.
  void send_next(int connection) {
    auto& queue = waiting_[index(connection)];
    busy_[index(connection)] = 0;
    while (!queue.empty() && !busy_[index(connection)]) {
      const Parcel parcel = queue.front();
      queue.pop_front();
      const Message& m = program_.messages[index(parcel.message)];
      const auto path = links_.path(program_.connection(m));
      const double bytes = bytes_of(parcel);
      if (bytes <= 0.0 || path.empty()) {
        left(parcel);
        continue;
      }
      const auto flow = index(network_.add(path, bytes, now_s_));
      if (flow >= parcel_of_flow_.size()) parcel_of_flow_.resize(flow + 1);
      parcel_of_flow_[flow] = parcel;
      busy_[index(connection)] = 1;
    }
  }

  void left(const Parcel& parcel) {
    const Message& m = program_.messages[index(parcel.message)];
    finish_s_[index(m.src)] = std::max(finish_s_[index(m.src)], now_s_);
    double done = now_s_ + program_.connection(m).latency_s;
    if (m.reduce) {
      double& cpu = cpu_free_[index(m.dst)];
      cpu = std::max(cpu, done) + bytes_of(parcel) / program_.fabric.reduce_bytes_per_s;
      done = cpu;
    }
    timers_.push({done, false, serial_++, parcel});
  }

  void finish_flows() {
    completed_.clear();
    network_.take_completed(now_s_, completed_);
    // Flow ids are used again at once, so read whose they were before starting others.
    departed_.clear();
    for (const int flow : completed_) departed_.push_back(parcel_of_flow_[index(flow)]);
    for (const Parcel& parcel : departed_) left(parcel);
    for (const Parcel& parcel : departed_) {
      send_next(program_.messages[index(parcel.message)].connection);
    }
  }

  const Program& program_;
  std::span<const double> ready_s_;
  Progress progress_;
  Links links_;
  FluidNetwork network_;
  std::vector<double> finish_s_;
  std::vector<double> cpu_free_;
  std::vector<std::deque<Parcel>> waiting_;  // per connection
  std::vector<char> busy_;
  std::vector<Parcel> parcel_of_flow_;
  std::vector<int> completed_;
  std::vector<Parcel> departed_;
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  std::int64_t serial_ = 0;
  double now_s_ = 0.0;
};

}  // namespace

std::vector<double> run_fluid(const Program& program, std::span<const double> ready_s) {
  return FluidReplay(program, ready_s).run();
}

}  // namespace kf::replay
