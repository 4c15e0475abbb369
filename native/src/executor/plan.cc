#include "executor/plan.h"

#include <algorithm>
#include <string>

#include "kf/error.h"

namespace kf {

namespace {

bool overlap(const LocalTransfer& a, const LocalTransfer& b) {
  return a.chunk_begin < b.chunk_begin + b.chunk_count &&
         b.chunk_begin < a.chunk_begin + a.chunk_count;
}

// How many contributions each chunk of each rank holds while the schedule runs.
class Contributions {
 public:
  explicit Contributions(const Schedule& schedule)
      : chunks_(static_cast<std::size_t>(schedule.chunk_count)),
        held_(static_cast<std::size_t>(schedule.world_size) * chunks_, 1) {}

  // Runs one round and calls complete(index in round, chunks that a reduce made complete,
  // chunks that are complete after it).
  template <class Fn>
  void run(const Round& round, int world_size, Fn&& complete) {
    std::vector<std::vector<int>> read;  // senders' counts as they were when the round began
    for (const Transfer& t : round) {
      const auto first = held_.begin() + static_cast<std::ptrdiff_t>(at(t.src, t.chunk_begin));
      read.emplace_back(first, first + t.chunk_count);
    }
    for (std::size_t i = 0; i < round.size(); ++i) {
      const Transfer& t = round[i];
      int full = 0;
      int whole = 0;
      for (int c = 0; c < t.chunk_count; ++c) {
        int& count = held_[at(t.dst, t.chunk_begin + c)];
        const int arriving = read[i][static_cast<std::size_t>(c)];
        count = t.combine == Combine::reduce ? count + arriving : arriving;
        if (t.combine == Combine::reduce && count == world_size) ++full;
        if (count == world_size) ++whole;
      }
      complete(i, full, whole);
    }
  }

 private:
  std::size_t at(int rank, int chunk) const {
    return static_cast<std::size_t>(rank) * chunks_ + static_cast<std::size_t>(chunk);
  }
  std::size_t chunks_;
  std::vector<int> held_;
};

struct Builder {
  Plan& plan;
  std::vector<int> round_of = {};  // of each local transfer, within its channel

  // A round stands in the plan with its sends first: they read the state before the round.
  void add_channel(const Channel& channel, Contributions& held, std::uint32_t& next_id) {
    const std::size_t first = plan.transfers.size();
    int round_index = 0;
    for (const Round& round : channel.rounds) {
      const std::uint32_t base = next_id;
      held.run(round, plan.schedule.world_size, [&](std::size_t i, int full, int whole) {
        const Transfer& t = round[i];
        if (t.src != plan.rank && t.dst != plan.rank) return;
        const bool is_send = t.src == plan.rank;
        if (!is_send && full > 0 && full < t.chunk_count) plan.divide_at_end = true;
        plan.transfers.push_back({base + static_cast<std::uint32_t>(i),
                                  in_view(is_send ? t.dst : t.src),
                                  is_send,
                                  t.combine,
                                  t.chunk_begin,
                                  t.chunk_count,
                                  false,
                                  -1,
                                  !is_send && full == t.chunk_count,
                                  !is_send && whole == t.chunk_count,
                                  {}});
        round_of.push_back(round_index);
      });
      next_id += static_cast<std::uint32_t>(round.size());
      ++round_index;
    }
    link(first);
    find_returns(first, channel);
  }

  int in_view(int rank) const {
    return plan.members.empty() ? rank : plan.members[static_cast<std::size_t>(rank)];
  }

  bool must_wait(std::size_t later, std::size_t earlier) const {
    const LocalTransfer& a = plan.transfers[earlier];
    const LocalTransfer& b = plan.transfers[later];
    if (!overlap(a, b)) return false;
    if (b.is_send) return !a.is_send && round_of[earlier] < round_of[later];
    return a.is_send ? round_of[earlier] <= round_of[later] : earlier < later;
  }

  void link(std::size_t first) {
    for (std::size_t i = first; i < plan.transfers.size(); ++i) {
      for (std::size_t j = first; j < plan.transfers.size(); ++j) {
        if (i == j || !must_wait(j, i)) continue;
        LocalTransfer& earlier = plan.transfers[i];
        earlier.successors.push_back(static_cast<std::uint32_t>(j));
        if (earlier.is_send && round_of[i] == round_of[j]) earlier.swaps = true;
      }
    }
  }

  // See LocalTransfer::returned_by.
  void find_returns(std::size_t first, const Channel& channel) {
    for (std::size_t i = first; i < plan.transfers.size(); ++i) {
      LocalTransfer& taken = plan.transfers[i];
      if (taken.is_send || taken.combine != Combine::reduce) continue;
      for (std::size_t j = i + 1; j < plan.transfers.size(); ++j) {
        const LocalTransfer& next = plan.transfers[j];
        if (!overlap(taken, next)) continue;
        if (!next.is_send) break;  // the result of this receive is not final yet
        const bool back = next.combine == Combine::replace && next.peer == taken.peer &&
                          next.chunk_begin == taken.chunk_begin &&
                          next.chunk_count == taken.chunk_count;
        if (!back) continue;
        if (only_user(channel, taken, round_of[i], round_of[j])) {
          taken.returned_by = static_cast<int>(j);
        }
        break;
      }
    }
  }

  // True when the peer neither sends these chunks to anybody else until `back`, nor receives
  // them between the two rounds.
  bool only_user(const Channel& channel, const LocalTransfer& taken, int lent, int back) const {
    for (int r = 0; r <= back; ++r) {
      for (const Transfer& t : channel.rounds[static_cast<std::size_t>(r)]) {
        const bool same = t.chunk_begin < taken.chunk_begin + taken.chunk_count &&
                          taken.chunk_begin < t.chunk_begin + t.chunk_count;
        if (!same || (in_view(t.src) != taken.peer && in_view(t.dst) != taken.peer)) continue;
        const bool the_loan = r == lent && in_view(t.src) == taken.peer && t.dst == plan.rank;
        const bool the_return = r == back && t.src == plan.rank && in_view(t.dst) == taken.peer;
        const bool before = in_view(t.dst) == taken.peer && r < lent;
        if (!the_loan && !the_return && !before) return false;
      }
    }
    return true;
  }
};

}  // namespace

std::shared_ptr<const Plan> make_plan(Schedule schedule, int rank, std::vector<int> members) {
  if (rank < 0 || rank >= schedule.world_size) {
    throw Error(ErrorCode::usage, "rank must be in [0, " + std::to_string(schedule.world_size) +
                                      "), got " + std::to_string(rank));
  }
  auto plan = std::make_shared<Plan>();
  plan->schedule = std::move(schedule);
  plan->rank = rank;
  plan->members = std::move(members);
  Contributions held(plan->schedule);
  Builder builder{*plan};
  plan->self = builder.in_view(rank);
  std::uint32_t next_id = 0;
  for (const Channel& channel : plan->schedule.channels)
    builder.add_channel(channel, held, next_id);
  return plan;
}

}  // namespace kf
