// The batched tier: max-min sharing like the fluid tier's, but shares are computed again only
// once a fraction of the flows has come or gone. Between two solutions every flow keeps its
// rate, events still happen at their own times, and what begins takes what others left.
#include <algorithm>
#include <array>
#include <cmath>

#include "kf/error.h"
#include "replay/links.h"
#include "replay/program.h"
#include "replay/shares.h"

namespace kf::replay {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t index(int i) {
  return static_cast<std::size_t>(i);
}

// Times this close are one instant: rounding of equal sums.
double with_ties(double time_s) {
  return time_s + 1e-12 * std::max(1e-3, std::abs(time_s));
}

// A connection begins (its number), or a flow ends (its place), inside the current window.
struct Event {
  double at_s;
  int which;
  bool ends;
  bool operator>(const Event& other) const {
    if (at_s != other.at_s) return at_s > other.at_s;
    if (ends != other.ends) return !ends;
    return which > other.which;
  }
};

template <int Hops>
class BatchedReplay {
 public:
  BatchedReplay(const Program& program, std::span<const double> ready_s, double fraction)
      : program_(program),
        ready_s_(ready_s),
        fraction_(fraction),
        progress_(program),
        shares_(Links(program).rates()),
        finish_s_(ready_s.begin(), ready_s.end()),
        cpu_free_(ready_s.size(), -kInfinity),
        stride_(*std::max_element(program.segments.begin(), program.segments.end())),
        next_(program.messages.size() * index(stride_)),
        from_s_(next_.size()),
        head_(program.connections.size(), -1),
        tail_(program.connections.size(), -1),
        place_(program.connections.size(), kIdle),
        gated_(ready_s.size()) {}

  std::vector<double> run() {
    for (int rank = 0; rank < program_.world_size; ++rank) order_.push_back(rank);
    std::stable_sort(order_.begin(), order_.end(),
                     [this](int a, int b) { return ready_s_[index(a)] < ready_s_[index(b)]; });
    now_s_ = ready_s_[index(order_.front())];
    end_s_ = now_s_;
    start_background();
    progress_.start([this](int segment, int slot) {
      opened(segment, slot, ready_s_[index(program_.slots[index(slot)].rank)]);
    });
    deliver();
    while (begin_window()) run_window();
    progress_.check_done();
    return std::move(finish_s_);
  }

 private:
  static constexpr int kIdle = -1;
  static constexpr int kBackground = -1;

  typename Shares<Hops>::Path path_of(const std::vector<int>& links) const {
    typename Shares<Hops>::Path path;
    path.fill(shares_.unlimited());
    std::copy(links.begin(), links.end(), path.begin());
    return path;
  }

  typename Shares<Hops>::Path path_of(int connection) const {
    typename Shares<Hops>::Path path;
    const auto& links = program_.paths[index(connection)];
    for (int hop = 0; hop < Hops; ++hop) {
      path[index(hop)] = links[index(hop)] < 0 ? shares_.unlimited() : links[index(hop)];
    }
    return path;
  }

  void start_background() {
    const Links links(program_);
    for (const BackgroundFlows& flows : program_.fabric.background) {
      const auto path = links.path(flows);
      if (path.empty()) continue;
      for (int i = 0; i < flows.count; ++i) {
        shares_.add(kBackground, path_of(path), kInfinity, now_s_);
        ++background_;
      }
    }
  }

  double bytes_of(int parcel) const {
    const Message& m = program_.messages[index(parcel / stride_)];
    if (stride_ == 1) return static_cast<double>(m.bytes);
    const int channel = program_.slots[index(m.dst_slot)].channel;
    return static_cast<double>(
        program_.segment_size(m, parcel % stride_, progress_.segments(channel)));
  }

  void opened(int segment, int slot_index, double at_s) {
    double& latest_s = progress_.latest_s(segment, slot_index);
    latest_s = std::max(latest_s, at_s);
    const Slot& slot = program_.slots[index(slot_index)];
    for (int i = slot.sends_begin; i < slot.sends_end; ++i) {
      const int message = program_.sends[index(i)];
      const Message& m = program_.messages[index(message)];
      const double from = std::max({at_s, ready_s_[index(m.src)], ready_s_[index(m.dst)]});
      enqueue(message * stride_ + segment, m, from);
    }
  }

  void enqueue(int parcel, const Message& m, double from_s) {
    const double at_s = from_s + program_.fabric.message_s;
    if (m.bytes == 0 || program_.paths[index(m.connection)][0] < 0) {
      instant_.push_back({at_s, parcel, true});
      return;
    }
    next_[index(parcel)] = -1;
    from_s_[index(parcel)] = at_s;
    int& head = head_[index(m.connection)];
    if (head >= 0) {
      next_[index(std::exchange(tail_[index(m.connection)], parcel))] = parcel;
      return;
    }
    head = tail_[index(m.connection)] = parcel;
    if (at_s < end_s_) {
      push({at_s, m.connection, false});
    } else if (from_s == ready_s_[index(m.dst)] && from_s > now_s_) {
      gated_[index(m.dst)].push_back(m.connection);
    } else if (from_s == ready_s_[index(m.src)] && from_s > now_s_) {
      gated_[index(m.src)].push_back(m.connection);
    } else {
      soon_.push_back({at_s, m.connection});
    }
  }

  // All of a parcel has left at `at_s`; what that opens is enqueued.
  void left(int parcel, double at_s) {
    const Message& m = program_.messages[index(parcel / stride_)];
    finish_s_[index(m.src)] = std::max(finish_s_[index(m.src)], at_s);
    double done = at_s + program_.connection(m).latency_s;
    if (m.reduce && !std::isinf(program_.fabric.reduce_bytes_per_s)) {
      double& cpu = cpu_free_[index(m.dst)];
      cpu = std::max(cpu, done) + bytes_of(parcel) / program_.fabric.reduce_bytes_per_s;
      done = cpu;
    }
    finish_s_[index(m.dst)] = std::max(finish_s_[index(m.dst)], done);
    const int segment = parcel % stride_;
    double& seen = progress_.latest_s(segment, m.dst_slot);
    latest_s_ = seen = std::max(seen, done);
    progress_.arrive(segment, m, [this](int piece, int slot) {
      opened(piece, slot, latest_s_);
      latest_s_ = progress_.latest_s(piece, slot);
    });
  }

  // What takes no time on the wire. A loop, because one may open the next without end.
  void deliver() {
    while (!instant_.empty()) {
      const Event next = instant_.back();
      instant_.pop_back();
      left(next.which, next.at_s);
    }
  }

  void push(const Event& event) {
    inside_.push_back(event);
    std::push_heap(inside_.begin(), inside_.end(), std::greater<>());
  }

  void activate(int connection, double at_s) {
    const auto place =
        shares_.add(connection, path_of(connection), bytes_of(head_[index(connection)]), at_s);
    place_[index(connection)] = static_cast<int>(place);
  }

  // Lets in all that may begin by now and shares anew; false: nothing is left to do.
  bool begin_window() {
    if (shares_.size() == background_) {
      double first_s = kInfinity;
      for (std::size_t g = gate_; g < order_.size() && first_s == kInfinity; ++g) {
        if (!gated_[index(order_[g])].empty()) first_s = gate_s(g);
      }
      for (const Soon& s : soon_) first_s = std::min(first_s, s.at_s);
      if (first_s == kInfinity) return false;
      now_s_ = std::max(now_s_, first_s);
    }
    const double due_s = with_ties(now_s_);
    for (; gate_ < order_.size() && gate_s(gate_) <= due_s; ++gate_) {
      for (const int c : gated_[index(order_[gate_])]) activate(c, now_s_);
      gated_[index(order_[gate_])].clear();
    }
    const auto waits = [&](const Soon& s) { return s.at_s > due_s; };
    const auto begin = std::stable_partition(soon_.begin(), soon_.end(), waits);
    for (auto it = begin; it != soon_.end(); ++it) activate(it->connection, now_s_);
    soon_.erase(begin, soon_.end());
    const bool exact = fraction_ == 0.0;
    shares_.solve(now_s_, exact ? 1e-12 : 0.05 * fraction_, exact ? 200 : 8);
    return true;
  }

  double gate_s(std::size_t place) const {
    return ready_s_[index(order_[place])] + program_.fabric.message_s;
  }

  // The window ends when so many flows have ended, or so many have begun.
  void choose_end() {
    const auto limit = std::max<std::size_t>(
        1, static_cast<std::size_t>(fraction_ * static_cast<double>(shares_.size())));
    collect(now_s_ + guess_s_);
    if (ending_.empty()) {
      const auto& finishes = shares_.finishes_s();
      collect(with_ties(*std::min_element(finishes.begin(), finishes.end())));
      end_s_ = std::isinf(found_s_) ? kInfinity : found_s_;
    } else {
      end_s_ = now_s_ + guess_s_;
    }
    if (ending_.size() >= limit) {
      std::nth_element(ending_.begin(),
                       ending_.begin() + static_cast<std::ptrdiff_t>(limit - 1), ending_.end(),
                       [](const Event& a, const Event& b) { return b > a; });
      end_s_ = ending_[limit - 1].at_s;
      guess_s_ = 1.3 * (end_s_ - now_s_);
    } else {
      guess_s_ = 1.5 * (std::isinf(end_s_) ? guess_s_ : end_s_ - now_s_);
    }
    limit_joins(limit);
    const double last_s = with_ties(end_s_);
    std::erase_if(ending_, [&](const Event& e) { return e.at_s > last_s; });
    std::sort(ending_.begin(), ending_.end(),
              [](const Event& a, const Event& b) { return b > a; });
  }

  void collect(double until_s) {
    ending_.clear();
    found_s_ = kInfinity;
    const auto& finishes = shares_.finishes_s();
    for (std::size_t i = 0; i < finishes.size(); ++i) {
      if (finishes[i] > until_s) continue;
      ending_.push_back({finishes[i], static_cast<int>(i), true});
      found_s_ = std::min(found_s_, finishes[i]);
    }
  }

  void limit_joins(std::size_t limit) {
    std::size_t count = 0;
    for (std::size_t g = gate_; g < order_.size() && gate_s(g) < end_s_; ++g) {
      count += gated_[index(order_[g])].size();
      if (count >= limit) end_s_ = gate_s(g);
    }
    joining_.clear();
    for (const Soon& s : soon_) {
      if (s.at_s < end_s_) joining_.push_back(s.at_s);
    }
    if (joining_.size() < limit) return;
    const auto nth = joining_.begin() + static_cast<std::ptrdiff_t>(limit - 1);
    std::nth_element(joining_.begin(), nth, joining_.end());
    end_s_ = std::min(end_s_, *nth);
  }

  void run_window() {
    choose_end();
    let_in();
    for (std::size_t i = 0; i < ending_.size() || !inside_.empty();) {
      if (i < ending_.size() && (inside_.empty() || inside_.front() > ending_[i])) {
        end_flow(ending_[i++]);
      } else {
        std::pop_heap(inside_.begin(), inside_.end(), std::greater<>());
        const Event event = inside_.back();
        inside_.pop_back();
        if (event.ends) {
          end_flow(event);
        } else {
          begin_flow(event);
        }
      }
      deliver();
    }
    shares_.purge([this](int owner, std::size_t place) {
      if (owner >= 0) place_[index(owner)] = static_cast<int>(place);
    });
    now_s_ = end_s_;
  }

  // Moves what begins inside the window from the lists of what waits to the window's events.
  void let_in() {
    for (; gate_ < order_.size() && gate_s(gate_) < end_s_; ++gate_) {
      for (const int c : gated_[index(order_[gate_])]) push({gate_s(gate_), c, false});
      gated_[index(order_[gate_])].clear();
    }
    const auto begin = std::stable_partition(
        soon_.begin(), soon_.end(), [this](const Soon& s) { return s.at_s >= end_s_; });
    for (auto it = begin; it != soon_.end(); ++it) push({it->at_s, it->connection, false});
    soon_.erase(begin, soon_.end());
  }

  void begin_flow(const Event& event) {
    activate(event.which, event.at_s);
    const int place = place_[index(event.which)];
    const double finish_s = shares_.finish_s(index(place));
    if (finish_s <= end_s_) push({finish_s, place, true});
  }

  // The parcel at the head has left; the connection's next one follows at the same rate.
  void end_flow(const Event& event) {
    const auto place = index(event.which);
    const int connection = shares_.owner(place);
    int& head = head_[index(connection)];
    const int parcel = head;
    left(parcel, event.at_s);
    head = next_[index(parcel)];
    if (head < 0 || from_s_[index(head)] > event.at_s) {
      shares_.leave(place);
      place_[index(connection)] = kIdle;
      if (head < 0) return;
      const double from_s = from_s_[index(head)];
      if (from_s < end_s_) {
        push({from_s, connection, false});
      } else {
        soon_.push_back({from_s, connection});
      }
      return;
    }
    const double finish_s = shares_.restart(place, bytes_of(head), event.at_s);
    if (finish_s <= end_s_) push({finish_s, event.which, true});
  }

  struct Soon {
    double at_s;
    int connection;
  };

  const Program& program_;
  std::span<const double> ready_s_;
  double fraction_;
  Progress progress_;
  Shares<Hops> shares_;
  std::vector<double> finish_s_;
  std::vector<double> cpu_free_;
  int stride_;                  // parcel: message * stride + segment
  std::vector<int> next_;       // per parcel: the one behind it on its connection
  std::vector<double> from_s_;  // per parcel: when it may leave
  std::vector<int> head_;       // per connection
  std::vector<int> tail_;
  std::vector<int> place_;               // per connection: of its flow, or kIdle
  std::vector<std::vector<int>> gated_;  // connections that wait for a rank to enter
  std::vector<int> order_;               // ranks, earliest to enter first
  std::size_t gate_ = 0;                 // in order_: who has not entered yet
  std::vector<Soon> soon_;               // connections that begin after the window
  std::vector<Event> ending_;            // flows that end inside the window
  std::vector<Event> inside_;            // heap: what comes up while the window runs
  std::vector<Event> instant_;
  std::vector<double> joining_;
  std::size_t background_ = 0;
  double found_s_ = kInfinity;
  double guess_s_ = 1e-6;
  double now_s_ = 0.0;
  double end_s_ = 0.0;
  double latest_s_ = 0.0;
};

}  // namespace

std::vector<double> run_batched(const Program& program, std::span<const double> ready_s,
                                double fraction) {
  if (program.messages.empty()) return {ready_s.begin(), ready_s.end()};
  const bool racks = std::any_of(program.paths.begin(), program.paths.end(),
                                 [](const auto& path) { return path[2] >= 0; });
  if (racks) return BatchedReplay<4>(program, ready_s, fraction).run();
  return BatchedReplay<2>(program, ready_s, fraction).run();
}

}  // namespace kf::replay
