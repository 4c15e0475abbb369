// Every order in which a few workers may train, die, fall silent, wake, come and leave: what
// the protocol of docs/membership.md does in each of them, step by step, until no state is new.
//
// A worker is modelled as the driver uses the roster: contribute to a step, complete it, fail,
// call the roll, conclude it, open the next view, learn where the others stand, take what it
// needs. Moves of the roster are atomic, as compare-and-set makes them; everything else may
// happen in any order, and a worker may be arbitrarily slow.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <sstream>
#include <string>
#include <unordered_set>
#include <vector>

#include "kf/membership.h"

namespace kf {
namespace {

constexpr int kSteps = 2;

enum class Phase : char {
  absent = 'a',      // has not been started
  waiting = 'w',     // waits to be taken in
  computing = 'c',   // between two steps
  reducing = 'r',    // has contributed to the next step
  boundary = 'b',    // at a planned change, before the roster was asked
  recovering = 'v',  // has left its session
  opening = 'o',     // has connected to the next view, and said where it stands
  done = 'd',        // trained to the end
  out = 'x',         // left, expelled, or the job is over
  dead = 'k',
};

struct Worker {
  Phase phase = Phase::absent;
  bool silent = false;  // stopped: takes no step until it wakes; the others cannot tell
  std::int64_t view = 0;
  std::int64_t completed = -1;  // steps
  std::string history;          // the view in which each step was completed
};

// What the members of one view have done in its session. Kept by view, as messages outlive a
// sender that died.
struct Session {
  std::string members;             // by rank
  std::vector<std::int64_t> said;  // by rank: the count each member announced; -2: not yet
  std::vector<std::string> histories;
  std::vector<int> contributed;  // by rank: step contributed to, 0: none
  std::vector<char> wanted;      // by step: some contribution said that a change is wanted
};

struct World {
  Roster roster;
  std::vector<Worker> workers;
  std::vector<Session> sessions;  // by version - 1
  int faults = 0;                 // deaths and silences so far

  std::string key() const;
};

std::string name(std::size_t worker) {
  return std::string(1, static_cast<char>('A' + worker));
}

std::size_t index_of(const std::string& id) {
  return static_cast<std::size_t>(id[0] - 'A');
}

std::string World::key() const {
  std::ostringstream text;
  text << roster.version << (roster.calling() ? '!' : '.');
  for (const Member& m : roster.members) text << m.id << (m.settled ? '+' : '-');
  text << '|';
  for (const Member& m : roster.joiners) text << m.id;
  text << '|';
  std::vector<std::string> present = roster.present;
  std::sort(present.begin(), present.end());
  for (const std::string& id : present) text << id;
  text << '|';
  for (const std::string& id : roster.leaving) text << id;
  text << (roster.ended.empty() ? '|' : 'E');
  for (const Worker& w : workers) {
    text << static_cast<char>(w.phase) << (w.silent ? 's' : '_') << w.view << ',' << w.completed
         << ',' << w.history << ';';
  }
  for (std::size_t v = 0; v < sessions.size(); ++v) {
    const bool used = std::any_of(workers.begin(), workers.end(), [&](const Worker& w) {
      return w.view == static_cast<std::int64_t>(v) + 1 && w.phase != Phase::dead &&
             w.phase != Phase::out && w.phase != Phase::done;
    });
    if (!used) continue;  // nobody looks at it any more
    const Session& s = sessions[v];
    text << '/' << v;
    for (const char step : s.wanted) text << (step != 0 ? 'w' : '_');
    for (const auto said : s.said) text << said << ',';
    for (const auto& h : s.histories) text << h << ',';
    for (const auto step : s.contributed) text << step << ',';
  }
  text << 'f' << faults;
  return text.str();
}

class Search {
 public:
  Search(int founders, int joiners, int faults, bool leaves)
      : most_faults_(faults), leaves_(leaves) {
    World first;
    first.roster = make_roster(founders, 1, founders + joiners);
    for (int w = 0; w < founders + joiners; ++w) {
      Member member;
      member.id = name(static_cast<std::size_t>(w));
      Worker worker;
      if (w < founders) {
        arrive(first.roster, w, member);
        worker = {Phase::computing, false, 1, 0, ""};
      }
      first.workers.push_back(worker);
    }
    first.sessions.push_back(blank(first.roster));
    push(std::move(first));
  }

  void run() {
    while (!queue_.empty() && !::testing::Test::HasFailure()) {
      const World world = std::move(queue_.front());
      queue_.pop_front();
      std::size_t before = found_;
      for (std::size_t w = 0; w < world.workers.size(); ++w) moves_of(world, w);
      if (found_ == before) ends_.insert(outcome(world));
    }
  }

  std::size_t states() const { return seen_.size(); }
  const std::unordered_set<std::string>& ends() const { return ends_; }

 private:
  static Session blank(const Roster& roster) {
    const std::size_t size = roster.members.size();
    return {ids(roster), std::vector<std::int64_t>(size, -2), std::vector<std::string>(size),
            std::vector<int>(size, 0), std::vector<char>(kSteps + 1, 0)};
  }

  static std::string ids(const Roster& roster) {
    std::string text;
    for (const Member& member : roster.members) text += member.id;
    return text;
  }

  void push(World world) {
    ++found_;
    const auto version = static_cast<std::size_t>(world.roster.version);
    if (world.sessions.size() < version) {
      world.sessions.push_back(blank(world.roster));
    }
    ASSERT_EQ(world.sessions.size(), version);
    ASSERT_EQ(world.sessions.back().members, ids(world.roster)) << "two views of one number";
    if (!seen_.insert(world.key()).second) return;
    check(world);
    queue_.push_back(std::move(world));
  }

  // Workers that train on in one view have committed the same steps in the same views.
  static void check(const World& world) {
    const Worker* other = nullptr;
    for (const Member& member : world.roster.members) {
      const Worker& worker = world.workers[index_of(member.id)];
      const bool trains = worker.phase == Phase::computing || worker.phase == Phase::reducing;
      if (!trains || worker.view != world.roster.version || worker.silent) continue;
      if (other != nullptr) {
        const std::size_t both = std::min(other->history.size(), worker.history.size());
        ASSERT_EQ(other->history.substr(0, both), worker.history.substr(0, both))
            << "one repeated what the other had committed: " << world.key();
        ASSERT_LE(std::abs(other->completed - worker.completed), 1) << world.key();
      }
      other = &worker;
    }
  }

  // How a world without further moves looks.
  static std::string outcome(const World& world) {
    std::string text;
    for (const Worker& worker : world.workers) {
      text += worker.silent ? 's' : static_cast<char>(worker.phase);
    }
    return text;
  }

  void moves_of(const World& world, std::size_t w);
  void reduce(const World& world, std::size_t w);
  void change_view(const World& world, std::size_t w);
  void open(const World& world, std::size_t w);

  static bool gone(const Worker& worker) {
    return worker.phase == Phase::dead || worker.phase == Phase::out ||
           worker.phase == Phase::done;
  }

  static bool view_is_broken(const World& world, const Worker& worker) {
    if (world.roster.version > worker.view || world.roster.calling()) return true;
    const auto broken = [&](const Member& member) {
      const Worker& peer = world.workers[index_of(member.id)];
      return peer.phase == Phase::dead || peer.phase == Phase::out || peer.silent ||
             (peer.view == worker.view && peer.phase == Phase::recovering);
    };
    return std::any_of(world.roster.members.begin(), world.roster.members.end(), broken);
  }

  int most_faults_;
  bool leaves_;
  std::size_t found_ = 0;
  std::deque<World> queue_;
  std::unordered_set<std::string> seen_;
  std::unordered_set<std::string> ends_;
};

void Search::moves_of(const World& world, std::size_t w) {
  const Worker& me = world.workers[w];
  if (gone(me)) return;
  if (me.silent) {
    World next = world;
    next.workers[w].silent = false;
    push(std::move(next));
    return;
  }
  if (me.phase == Phase::absent) {
    World next = world;
    Member member;
    member.id = name(w);
    if (next.roster.ended.empty()) {
      join(next.roster, member);
      next.workers[w].phase = Phase::waiting;
    } else {
      next.workers[w].phase = Phase::out;
    }
    push(std::move(next));
    return;
  }
  if (world.faults < most_faults_) {
    for (const bool dies : {true, false}) {
      World next = world;
      ++next.faults;
      if (dies) {
        next.workers[w].phase = Phase::dead;
      } else {
        next.workers[w].silent = true;
      }
      push(std::move(next));
    }
  }
  if (leaves_ && w == 1 && world.roster.leaving.empty() && me.phase == Phase::computing &&
      world.roster.find(name(w)) != nullptr && world.roster.ended.empty() &&
      world.roster.members.size() > 1) {
    World next = world;
    leave(next.roster, name(w));
    push(std::move(next));
  }
  reduce(world, w);
  change_view(world, w);
  open(world, w);
}

void Search::reduce(const World& world, std::size_t w) {
  const Worker& me = world.workers[w];
  if (me.phase != Phase::computing && me.phase != Phase::reducing) return;
  const Session& session = world.sessions[static_cast<std::size_t>(me.view) - 1];
  const std::size_t size = session.contributed.size();
  const auto at = [&](const World& now) { return now.workers[w].view - 1; };
  if (me.phase == Phase::computing) {
    if (me.completed == kSteps) {
      World next = world;
      next.workers[w].phase = Phase::done;
      // leaves once all members of its view have the last step: the barrier at the end
      bool all = true;
      for (std::size_t p = 0; p < world.workers.size(); ++p) {
        const Worker& peer = world.workers[p];
        if (p == w || peer.view != me.view) continue;
        all = all && (peer.completed == kSteps || gone(peer));
      }
      if (all && !view_is_broken(world, me)) {
        end(next.roster, "finished");
        push(std::move(next));
      }
    } else {
      World next = world;
      Session& mine = next.sessions[static_cast<std::size_t>(at(next))];
      const auto step = static_cast<std::size_t>(me.completed) + 1;
      mine.contributed[mine.members.find(name(w))] = static_cast<int>(step);
      if (world.roster.version == me.view && change_wanted(world.roster)) mine.wanted[step] = 1;
      next.workers[w].phase = Phase::reducing;
      push(std::move(next));
    }
  } else {
    const auto step = static_cast<int>(me.completed) + 1;
    std::size_t there = 0;
    for (const int other : session.contributed) there += other >= step ? 1U : 0U;
    if (there == size) {
      World next = world;
      Worker& mine = next.workers[w];
      mine.completed = step;
      mine.history += std::to_string(me.view);
      mine.phase =
          session.wanted[static_cast<std::size_t>(step)] ? Phase::boundary : Phase::computing;
      push(std::move(next));
    }
  }
  if (view_is_broken(world, me)) {
    World next = world;
    next.workers[w].phase = Phase::recovering;
    call_roll(next.roster, me.view, name(w), "it failed");
    push(std::move(next));
  }
}

void Search::change_view(const World& world, std::size_t w) {
  const Worker& me = world.workers[w];
  if (me.phase == Phase::boundary) {
    World next = world;
    next.workers[w].phase = Phase::recovering;
    install(next.roster, me.view);
    push(std::move(next));
    return;
  }
  if (me.phase != Phase::recovering && me.phase != Phase::waiting) return;
  const Roster& roster = world.roster;
  const bool member = roster.find(name(w)) != nullptr;
  if (roster.version > me.view && member) {
    World next = world;
    Worker& mine = next.workers[w];
    mine.phase = Phase::opening;
    mine.view = roster.version;
    Session& session = next.sessions[static_cast<std::size_t>(roster.version) - 1];
    const auto rank = static_cast<std::size_t>(roster.rank_of(name(w)));
    session.said[rank] = me.completed;
    session.histories[rank] = me.history;
    push(std::move(next));
    return;
  }
  const bool joiner = std::any_of(roster.joiners.begin(), roster.joiners.end(),
                                  [&](const Member& j) { return j.id == name(w); });
  if ((roster.version > me.view && !joiner) || !roster.ended.empty()) {
    World next = world;
    const bool finished = !roster.ended.empty() && me.completed == kSteps;
    next.workers[w].phase = finished ? Phase::done : Phase::out;
    push(std::move(next));
    return;
  }
  if (roster.version != me.view || !roster.calling()) return;
  World next = world;
  if (call_roll(next.roster, me.view, name(w), "")) {
    push(std::move(next));
    return;
  }
  // it gives up whoever is dead, and, if it comes to that, whoever is silent
  std::vector<std::string> lost;
  for (const Member& other : roster.members) {
    const Worker& peer = world.workers[index_of(other.id)];
    const bool here = std::find(roster.present.begin(), roster.present.end(), other.id) !=
                      roster.present.end();
    if (!here && (gone(peer) || peer.silent)) lost.push_back(other.id);
  }
  if (conclude(next.roster, me.view, lost, "lost")) push(std::move(next));
}

void Search::open(const World& world, std::size_t w) {
  const Worker& me = world.workers[w];
  if (me.phase != Phase::opening) return;
  const Session& session = world.sessions[static_cast<std::size_t>(me.view) - 1];
  if (std::find(session.said.begin(), session.said.end(), -2) == session.said.end()) {
    const Reconciled standing = reconcile(session.said);
    const auto source = static_cast<std::size_t>(standing.sources.front());
    World next = world;
    Worker& mine = next.workers[w];
    const bool newcomer = me.completed == -1;
    if (!newcomer) {
      ASSERT_EQ(session.histories[source].substr(0, me.history.size()), me.history)
          << "it had committed what the others repeated: " << world.key();
    }
    mine.completed = standing.committed;
    mine.history = session.histories[source];
    mine.phase = Phase::computing;
    if (newcomer) settle(next.roster, name(w));
    const Member* self = next.roster.find(name(w));
    if (newcomer && (self == nullptr || !self->settled)) {
      mine.completed = -1;  // the view ended before it had settled
      mine.history.clear();
      mine.phase = Phase::recovering;
    }
    push(std::move(next));
  }
  if (view_is_broken(world, me)) {
    World next = world;
    next.workers[w].phase = Phase::recovering;
    call_roll(next.roster, me.view, name(w), "it failed");
    push(std::move(next));
  }
}

void explore(int founders, int joiners, int faults, bool leaves, std::size_t at_least) {
  Search search(founders, joiners, faults, leaves);
  search.run();
  EXPECT_GE(search.states(), at_least);
  for (const std::string& end : search.ends()) {
    const bool somebody = end.find('d') != std::string::npos;
    EXPECT_EQ(end.find_first_of("acrbvos"), std::string::npos) << "stuck: " << end;
    // whoever waits is told, unless nobody is left to tell it
    EXPECT_TRUE(end.find('w') == std::string::npos || !somebody) << "forgotten: " << end;
  }
  std::printf("%zu states, %zu ends\n", search.states(), search.ends().size());
}

TEST(MembershipSearch, TwoWorkersANewcomerAndOneFault) {
  explore(2, 1, 1, false, 1000);
}
TEST(MembershipSearch, ThreeWorkersAndOneFault) {
  explore(3, 0, 1, false, 1000);
}
TEST(MembershipSearch, AWorkerLeavesWhileAnotherComesAndOneFails) {
  explore(2, 1, 1, true, 1000);
}

}  // namespace
}  // namespace kf
