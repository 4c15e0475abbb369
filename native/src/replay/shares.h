// Max-min fair shares of many flows at once, found from those of a moment ago.
//
// Terms: level of a link: the most that it lets any flow have; a flow's rate is the lowest
// level
//        on its path. Rates are max-min fair when each link is full or its level is its
//        capacity.
// Each pass moves every level by one Newton step towards the level at which its link is full.
// Levels of a moment ago are nearly right, so a few passes do, whatever the number of links
// that limit somebody. Source of the condition: Bertsekas and Gallager, "Data Networks", 6.5.2.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace kf::replay {

template <int Hops>
class Shares {
 public:
  using Path = std::array<int, Hops>;  // link numbers; unlimited() where it has fewer

  explicit Shares(std::vector<double> bytes_per_s) : capacity_(std::move(bytes_per_s)) {
    capacity_.push_back(std::numeric_limits<double>::infinity());
    level_ = capacity_;
    used_.assign(capacity_.size(), 0.0);
    bound_.assign(capacity_.size(), 0);
    count_.assign(capacity_.size(), 0);
  }

  int unlimited() const noexcept { return static_cast<int>(capacity_.size()) - 1; }
  std::size_t size() const noexcept { return paths_.size(); }

  // A flow that begins between two solutions takes what is unused on its path, or at least the
  // share of one more flow: a link may carry a little too much until the next solution. (Less
  // would starve it: measured, worse.) Returns its place; places are dense and change in
  // purge().
  std::size_t add(int owner, const Path& path, double bytes, double at_s) {
    double rate = std::numeric_limits<double>::infinity();
    for (const int link : path) {
      const auto l = static_cast<std::size_t>(link);
      rate = std::min(rate, std::max(capacity_[l] - used_[l], capacity_[l] / (count_[l] + 1)));
    }
    for (const int link : path) {
      const auto l = static_cast<std::size_t>(link);
      used_[l] += rate;
      ++count_[l];
    }
    paths_.push_back(path);
    owner_.push_back(owner);
    remaining_.push_back(bytes);
    rate_.push_back(rate);
    at_s_.push_back(at_s);
    finish_s_.push_back(at_s + bytes / rate);
    return paths_.size() - 1;
  }

  // The flow at `place` ends; its place stays until purge().
  void leave(std::size_t place) {
    for (const int link : paths_[place]) {
      const auto l = static_cast<std::size_t>(link);
      used_[l] -= rate_[place];
      --count_[l];
    }
    finish_s_[place] = std::numeric_limits<double>::infinity();
    left_.push_back(place);
  }

  // The flow at `place` goes on with other bytes, at the same rate.
  double restart(std::size_t place, double bytes, double at_s) {
    remaining_[place] = bytes;
    at_s_[place] = at_s;
    return finish_s_[place] = at_s + bytes / rate_[place];
  }

  // Gives up the places of flows that left; calls moved(owner, place) for each that moves.
  template <typename Moved>
  void purge(Moved&& moved) {
    std::sort(left_.begin(), left_.end());
    for (; !left_.empty(); left_.pop_back()) {
      const std::size_t place = left_.back();
      const std::size_t last = paths_.size() - 1;
      if (place != last) {
        paths_[place] = paths_[last];
        owner_[place] = owner_[last];
        remaining_[place] = remaining_[last];
        rate_[place] = rate_[last];
        at_s_[place] = at_s_[last];
        finish_s_[place] = finish_s_[last];
        moved(owner_[place], place);
      }
      paths_.pop_back();
      owner_.pop_back();
      remaining_.pop_back();
      rate_.pop_back();
      at_s_.pop_back();
      finish_s_.pop_back();
    }
  }

  // Shares of all flows from now_s on. No link is over-full afterwards; each level is within
  // `tolerance` of its fair value, or as near as `passes` come.
  void solve(double now_s, double tolerance, int passes) {
    for (std::size_t l = 0; l < capacity_.size(); ++l) {
      if (count_[l] == 0) level_[l] = capacity_[l];
    }
    for (int pass = 0; pass < passes; ++pass) {
      fill();
      if (!adjust(tolerance, pass < kFullSteps ? 1.0 : 0.5)) break;
    }
    for (std::size_t l = 0; l + 1 < capacity_.size(); ++l) {
      scale_[l] = used_[l] > capacity_[l] ? capacity_[l] / used_[l] : 1.0;
      used_[l] = std::min(used_[l], capacity_[l]);
    }
    for (std::size_t i = 0; i < paths_.size(); ++i) {
      double rate = std::numeric_limits<double>::infinity();
      double scale = 1.0;
      for (const int link : paths_[i]) {
        rate = std::min(rate, filled_[static_cast<std::size_t>(link)]);
        scale = std::min(scale, scale_[static_cast<std::size_t>(link)]);
      }
      remaining_[i] = std::max(0.0, remaining_[i] - rate_[i] * (now_s - at_s_[i]));
      at_s_[i] = now_s;
      rate_[i] = rate * scale;
      finish_s_[i] = now_s + remaining_[i] / rate_[i];
    }
  }

  int owner(std::size_t place) const noexcept { return owner_[place]; }
  double finish_s(std::size_t place) const noexcept { return finish_s_[place]; }
  const std::vector<double>& finishes_s() const noexcept { return finish_s_; }

 private:
  // Neighbours that keep over-shooting each other stop doing so when steps are halved.
  static constexpr int kFullSteps = 6;

  // What each link carries at the present levels, and how many flows it limits.
  void fill() {
    std::fill(used_.begin(), used_.end(), 0.0);
    std::fill(bound_.begin(), bound_.end(), 0);
    for (const Path& path : paths_) {
      double rate = std::numeric_limits<double>::infinity();
      for (const int link : path) rate = std::min(rate, level_[static_cast<std::size_t>(link)]);
      for (const int link : path) {
        const auto l = static_cast<std::size_t>(link);
        used_[l] += rate;
        bound_[l] += level_[l] <= rate ? 1 : 0;
      }
    }
  }

  // One Newton step of all levels. Returns whether any link was off by more than the tolerance;
  // if not, the levels stay as fill() used them.
  bool adjust(double tolerance, double step) {
    filled_ = level_;
    scale_.assign(capacity_.size(), 1.0);
    bool off = false;
    for (std::size_t l = 0; l + 1 < capacity_.size(); ++l) {
      if (count_[l] == 0 || std::isinf(capacity_[l])) continue;
      const double spare = capacity_[l] - used_[l];
      const bool limits = bound_[l] > 0 && level_[l] < capacity_[l];
      if (spare < -tolerance * capacity_[l] || (limits && spare > tolerance * capacity_[l])) {
        off = true;
      }
      double next = capacity_[l];
      if (bound_[l] > 0) {
        next = level_[l] + spare / bound_[l];
      } else if (spare < 0.0) {
        next = capacity_[l] / count_[l];  // from below, steps cannot over-shoot
      }
      next = std::clamp(next, capacity_[l] / count_[l], capacity_[l]);
      level_[l] += step * (next - level_[l]);
    }
    return off;
  }

  std::vector<double> capacity_;  // per link; the last is unlimited
  std::vector<double> level_;
  std::vector<double> filled_;  // the levels that used_ belongs to
  std::vector<double> scale_;
  std::vector<double> used_;
  std::vector<int> bound_;  // flows that have the link's level
  std::vector<int> count_;
  std::vector<Path> paths_;  // per flow, as all below
  std::vector<int> owner_;
  std::vector<double> remaining_;  // bytes, as of at_s_
  std::vector<double> rate_;
  std::vector<double> at_s_;
  std::vector<double> finish_s_;
  std::vector<std::size_t> left_;
};

}  // namespace kf::replay
