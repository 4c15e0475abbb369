// Max-min fair sharing of links by flows, event by event. Knows bytes, links and time; nothing
// of schedules.
//
// Terms: link: a capacity in bytes per second; flow: bytes that cross a path of links at once;
//        max-min fair: no flow can get more without taking from one that has less or equal;
//        component: flows connected through links they share. Only the component that a change
//        touches is solved again.
// Threads: one at a time per object.
// Source: progressive filling, Bertsekas and Gallager, "Data Networks", 2nd ed., 6.5.2; solving
//         per component and lazily kept remains as in SimGrid (Casanova et al., JPDC 2014).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace kf {

inline constexpr int kMaxHops = 4;  // egress, rack uplink, rack downlink, ingress

class FluidNetwork {
 public:
  // Throws Error{usage} if a capacity is not positive.
  explicit FluidNetwork(std::vector<double> link_bytes_per_s);

  // Starts a flow at now_s and returns its id; ids are used again after completion. An infinite
  // `bytes` never completes. The path names 1..kMaxHops different links.
  // Throws Error{usage} on a bad path or bytes that are not positive.
  int add(std::span<const int> path, double bytes, double now_s);

  // Time of the next completion (infinity: none). Shares are brought up to date first.
  double next_completion_s(double now_s);

  // Removes every flow that completes by now_s and appends its id to `completed`, by id.
  void take_completed(double now_s, std::vector<int>& completed);

  double rate_bytes_per_s(int flow, double now_s);  // as of the last change
  int active() const noexcept { return active_; }
  std::int64_t solves() const noexcept { return solves_; }

 private:
  struct Flow {
    std::array<int, kMaxHops> links{};
    std::array<int, kMaxHops> places{};  // position in each link's list of flows
    int hops = 0;                        // 0: this id is free
    double remaining = 0.0;              // bytes, as of touched_s
    double rate = 0.0;
    double touched_s = 0.0;
    double finish_s = 0.0;
    int heap_place = -1;
  };

  void remove(int flow);
  void settle(double now_s);  // solves all components with a changed link
  void collect(int link);
  void fill(double now_s);
  void set_rate(int flow, double rate, double now_s);
  bool before(int a, int b) const noexcept;
  void heap_up(int place);
  void heap_down(int place);
  void heap_erase(int flow);

  std::vector<double> capacity_;
  std::vector<std::vector<int>> flows_of_;  // per link
  std::vector<Flow> flows_;
  std::vector<int> free_;
  std::vector<int> heap_;     // flow ids, earliest finish first
  std::vector<int> changed_;  // links whose flows changed since the last solve
  std::vector<char> is_changed_;
  // Scratch of one solve, kept to avoid allocation.
  std::vector<int> part_flows_, part_links_;
  std::vector<char> flow_seen_, link_seen_;
  std::vector<double> left_, tightest_;
  std::vector<int> open_;
  int active_ = 0;
  std::int64_t solves_ = 0;
};

// Slow and obvious: raises all rates together and freezes at the tightest link, one link at a
// time. The reference that tests hold FluidNetwork against.
// paths: per flow its links; result: bytes per second per flow.
std::vector<double> max_min_rates(std::span<const double> capacity,
                                  std::span<const std::vector<int>> paths);

}  // namespace kf
