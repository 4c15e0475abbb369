#include "kf/fluid.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kf/error.h"

namespace kf {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Shares that differ by less than this fraction are one share: rounding, not a bottleneck.
constexpr double kSameShare = 1e-12;

// Completions this close belong to one instant; far below a nanosecond for any real run.
double instant_end(double now_s) {
  return now_s + 1e-13 * std::max(1.0, std::abs(now_s));
}

}  // namespace

FluidNetwork::FluidNetwork(std::vector<double> link_bytes_per_s)
    : capacity_(std::move(link_bytes_per_s)),
      flows_of_(capacity_.size()),
      is_changed_(capacity_.size(), 0),
      link_seen_(capacity_.size(), 0),
      left_(capacity_.size(), 0.0),
      open_(capacity_.size(), 0) {
  for (std::size_t link = 0; link < capacity_.size(); ++link) {
    if (!(capacity_[link] > 0.0)) {
      throw Error(ErrorCode::usage, "link rate must be > 0 bytes/s, got " +
                                        std::to_string(capacity_[link]) + " at link " +
                                        std::to_string(link));
    }
  }
}

int FluidNetwork::add(std::span<const int> path, double bytes, double now_s) {
  if (path.empty() || path.size() > kMaxHops) {
    throw Error(ErrorCode::usage, "a path must have 1.." + std::to_string(kMaxHops) +
                                      " links, got " + std::to_string(path.size()));
  }
  if (!(bytes > 0.0)) {
    throw Error(ErrorCode::usage, "a flow must have > 0 bytes, got " + std::to_string(bytes));
  }
  for (std::size_t hop = 0; hop < path.size(); ++hop) {
    const int link = path[hop];
    if (link < 0 || static_cast<std::size_t>(link) >= capacity_.size()) {
      throw Error(ErrorCode::usage, "link must be in [0, " + std::to_string(capacity_.size()) +
                                        "), got " + std::to_string(link));
    }
    if (std::find(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(hop), link) !=
        path.begin() + static_cast<std::ptrdiff_t>(hop)) {
      throw Error(ErrorCode::usage, "a path must name each link once, got link " +
                                        std::to_string(link) + " twice");
    }
  }
  int id;
  if (free_.empty()) {
    id = static_cast<int>(flows_.size());
    flows_.emplace_back();
    flow_seen_.push_back(0);
    tightest_.push_back(0.0);
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Flow& flow = flows_[static_cast<std::size_t>(id)];
  flow = Flow{};
  flow.hops = static_cast<int>(path.size());
  flow.remaining = bytes;
  flow.touched_s = now_s;
  flow.finish_s = kInfinity;
  for (std::size_t hop = 0; hop < path.size(); ++hop) {
    const auto link = static_cast<std::size_t>(path[hop]);
    flow.links[hop] = path[hop];
    flow.places[hop] = static_cast<int>(flows_of_[link].size());
    flows_of_[link].push_back(id);
    if (!is_changed_[link]) {
      is_changed_[link] = 1;
      changed_.push_back(path[hop]);
    }
  }
  flow.heap_place = static_cast<int>(heap_.size());
  heap_.push_back(id);
  heap_up(flow.heap_place);
  ++active_;
  return id;
}

void FluidNetwork::remove(int id) {
  Flow& flow = flows_[static_cast<std::size_t>(id)];
  for (int hop = 0; hop < flow.hops; ++hop) {
    const auto h = static_cast<std::size_t>(hop);
    const auto link = static_cast<std::size_t>(flow.links[h]);
    std::vector<int>& list = flows_of_[link];
    const int last = list.back();
    list[static_cast<std::size_t>(flow.places[h])] = last;
    Flow& moved = flows_[static_cast<std::size_t>(last)];
    for (int k = 0; k < moved.hops; ++k) {
      if (moved.links[static_cast<std::size_t>(k)] == flow.links[h]) {
        moved.places[static_cast<std::size_t>(k)] = flow.places[h];
      }
    }
    list.pop_back();
    if (!is_changed_[link]) {
      is_changed_[link] = 1;
      changed_.push_back(flow.links[h]);
    }
  }
  heap_erase(id);
  flow.hops = 0;
  free_.push_back(id);
  --active_;
}

double FluidNetwork::next_completion_s(double now_s) {
  settle(now_s);
  return heap_.empty() ? kInfinity : flows_[static_cast<std::size_t>(heap_[0])].finish_s;
}

void FluidNetwork::take_completed(double now_s, std::vector<int>& completed) {
  settle(now_s);
  const double end = instant_end(now_s);
  const std::size_t first = completed.size();
  while (!heap_.empty() && flows_[static_cast<std::size_t>(heap_[0])].finish_s <= end) {
    completed.push_back(heap_[0]);
    remove(heap_[0]);
  }
  std::sort(completed.begin() + static_cast<std::ptrdiff_t>(first), completed.end());
}

double FluidNetwork::rate_bytes_per_s(int flow, double now_s) {
  settle(now_s);
  return flows_.at(static_cast<std::size_t>(flow)).rate;
}

void FluidNetwork::settle(double now_s) {
  for (const int link : changed_) {
    // A link that an earlier component of this instant already covered is no longer changed.
    if (!is_changed_[static_cast<std::size_t>(link)]) continue;
    collect(link);
    if (!part_flows_.empty()) fill(now_s);
    for (const int l : part_links_) {
      is_changed_[static_cast<std::size_t>(l)] = 0;
      link_seen_[static_cast<std::size_t>(l)] = 0;
    }
    for (const int f : part_flows_) flow_seen_[static_cast<std::size_t>(f)] = 0;
  }
  changed_.clear();
}

// The component of `link`: a breadth-first walk over links and the flows that cross them.
void FluidNetwork::collect(int link) {
  part_flows_.clear();
  part_links_.assign(1, link);
  link_seen_[static_cast<std::size_t>(link)] = 1;
  for (std::size_t i = 0; i < part_links_.size(); ++i) {
    for (const int id : flows_of_[static_cast<std::size_t>(part_links_[i])]) {
      if (flow_seen_[static_cast<std::size_t>(id)]) continue;
      flow_seen_[static_cast<std::size_t>(id)] = 1;
      part_flows_.push_back(id);
      const Flow& flow = flows_[static_cast<std::size_t>(id)];
      for (int hop = 0; hop < flow.hops; ++hop) {
        const int other = flow.links[static_cast<std::size_t>(hop)];
        if (link_seen_[static_cast<std::size_t>(other)]) continue;
        link_seen_[static_cast<std::size_t>(other)] = 1;
        part_links_.push_back(other);
      }
    }
  }
}

// Progressive filling of the collected component. A link whose share is the smallest for every
// flow that crosses it is a bottleneck whatever happens elsewhere, so all such links are frozen
// in one pass: one to three passes instead of one per level.
void FluidNetwork::fill(double now_s) {
  ++solves_;
  for (const int l : part_links_) {
    const auto link = static_cast<std::size_t>(l);
    left_[link] = capacity_[link];
    open_[link] = static_cast<int>(flows_of_[link].size());
  }
  const auto share = [this](int l) {
    const auto link = static_cast<std::size_t>(l);
    return left_[link] / open_[link];
  };
  std::vector<int>& waiting = part_flows_;
  std::size_t count = waiting.size();
  while (count > 0) {
    for (std::size_t i = 0; i < count; ++i) {
      const Flow& flow = flows_[static_cast<std::size_t>(waiting[i])];
      double tightest = kInfinity;
      for (int hop = 0; hop < flow.hops; ++hop) {
        tightest = std::min(tightest, share(flow.links[static_cast<std::size_t>(hop)]));
      }
      tightest_[static_cast<std::size_t>(waiting[i])] = tightest;
    }
    const std::size_t before_pass = count;
    for (const int l : part_links_) {
      const auto link = static_cast<std::size_t>(l);
      if (open_[link] == 0) continue;
      const double limit = share(l) * (1.0 - kSameShare);
      bool bottleneck = true;
      for (const int id : flows_of_[link]) {
        const double tightest = tightest_[static_cast<std::size_t>(id)];
        if (tightest >= 0.0 && tightest < limit) {
          bottleneck = false;
          break;
        }
      }
      if (!bottleneck) continue;
      const double rate = share(l);
      for (const int id : flows_of_[link]) {
        double& tightest = tightest_[static_cast<std::size_t>(id)];
        if (tightest < 0.0) continue;  // frozen before
        tightest = -1.0;
        set_rate(id, rate, now_s);
        const Flow& flow = flows_[static_cast<std::size_t>(id)];
        for (int hop = 0; hop < flow.hops; ++hop) {
          const auto crossed =
              static_cast<std::size_t>(flow.links[static_cast<std::size_t>(hop)]);
          left_[crossed] = std::max(0.0, left_[crossed] - rate);
          --open_[crossed];
        }
      }
    }
    // Frozen flows go to the back; they stay in the list so that settle() can clear their
    // marks.
    count = static_cast<std::size_t>(
        std::stable_partition(
            waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(count),
            [this](int id) { return tightest_[static_cast<std::size_t>(id)] >= 0.0; }) -
        waiting.begin());
    if (count == before_pass) {
      throw Error(ErrorCode::internal, "max-min filling made no progress with " +
                                           std::to_string(count) + " flows left");
    }
  }
}

void FluidNetwork::set_rate(int id, double rate, double now_s) {
  Flow& flow = flows_[static_cast<std::size_t>(id)];
  if (rate == flow.rate) return;
  flow.remaining = std::max(0.0, flow.remaining - flow.rate * (now_s - flow.touched_s));
  flow.touched_s = now_s;
  flow.rate = rate;
  const double old_finish = flow.finish_s;
  flow.finish_s = now_s + flow.remaining / rate;
  if (flow.finish_s < old_finish) {
    heap_up(flow.heap_place);
  } else {
    heap_down(flow.heap_place);
  }
}

// Ties by id, so that the order never depends on the history of the heap.
bool FluidNetwork::before(int a, int b) const noexcept {
  const double fa = flows_[static_cast<std::size_t>(a)].finish_s;
  const double fb = flows_[static_cast<std::size_t>(b)].finish_s;
  return fa < fb || (fa == fb && a < b);
}

void FluidNetwork::heap_up(int place) {
  auto p = static_cast<std::size_t>(place);
  const int id = heap_[p];
  while (p > 0 && before(id, heap_[(p - 1) / 2])) {
    heap_[p] = heap_[(p - 1) / 2];
    flows_[static_cast<std::size_t>(heap_[p])].heap_place = static_cast<int>(p);
    p = (p - 1) / 2;
  }
  heap_[p] = id;
  flows_[static_cast<std::size_t>(id)].heap_place = static_cast<int>(p);
}

void FluidNetwork::heap_down(int place) {
  auto p = static_cast<std::size_t>(place);
  const int id = heap_[p];
  for (std::size_t child = 2 * p + 1; child < heap_.size(); child = 2 * p + 1) {
    if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) ++child;
    if (!before(heap_[child], id)) break;
    heap_[p] = heap_[child];
    flows_[static_cast<std::size_t>(heap_[p])].heap_place = static_cast<int>(p);
    p = child;
  }
  heap_[p] = id;
  flows_[static_cast<std::size_t>(id)].heap_place = static_cast<int>(p);
}

void FluidNetwork::heap_erase(int id) {
  const int place = flows_[static_cast<std::size_t>(id)].heap_place;
  const int last = heap_.back();
  heap_.pop_back();
  if (last == id) return;
  heap_[static_cast<std::size_t>(place)] = last;
  flows_[static_cast<std::size_t>(last)].heap_place = place;
  heap_up(place);
  heap_down(flows_[static_cast<std::size_t>(last)].heap_place);
}

std::vector<double> max_min_rates(std::span<const double> capacity,
                                  std::span<const std::vector<int>> paths) {
  std::vector<double> left(capacity.begin(), capacity.end());
  std::vector<double> rate(paths.size(), -1.0);
  for (std::size_t frozen = 0; frozen < paths.size();) {
    std::vector<int> open(capacity.size(), 0);
    for (std::size_t f = 0; f < paths.size(); ++f) {
      if (rate[f] >= 0.0) continue;
      for (const int link : paths[f]) ++open[static_cast<std::size_t>(link)];
    }
    std::size_t tightest = capacity.size();
    for (std::size_t l = 0; l < capacity.size(); ++l) {
      if (open[l] > 0 && (tightest == capacity.size() ||
                          left[l] / open[l] < left[tightest] / open[tightest])) {
        tightest = l;
      }
    }
    const double share = left[tightest] / open[tightest];
    for (std::size_t f = 0; f < paths.size(); ++f) {
      const bool crosses = std::find(paths[f].begin(), paths[f].end(),
                                     static_cast<int>(tightest)) != paths[f].end();
      if (rate[f] >= 0.0 || !crosses) continue;
      rate[f] = share;
      ++frozen;
      for (const int link : paths[f]) left[static_cast<std::size_t>(link)] -= share;
    }
  }
  return rate;
}

}  // namespace kf
