#include "kf/membership.h"

#include <algorithm>
#include <utility>

#include "kf/error.h"

namespace kf {
namespace {

bool holds(const std::vector<std::string>& list, const std::string& id) {
  return std::find(list.begin(), list.end(), id) != list.end();
}

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::usage, text);
}

bool asked_to_go(const Roster& roster, const std::string& id) {
  return holds(roster.leaving, id) || roster.excluded.count(id) != 0;
}

// Those that want to stay and may, without regard to the least size.
std::vector<Member> remaining(const Roster& roster) {
  std::vector<Member> stay;
  for (const Member& member : roster.members) {
    if (!asked_to_go(roster, member.id)) stay.push_back(member);
  }
  return stay;
}

std::size_t most(const Roster& roster) {
  return static_cast<std::size_t>(roster.target > 0 ? roster.target : roster.max_size);
}

void check_departure(const Roster& roster, const std::string& id, const char* what) {
  if (roster.find(id) == nullptr) {
    refuse("no member is named '" + id + "', so it cannot " + what);
  }
  std::size_t left = remaining(roster).size();
  if (!asked_to_go(roster, id)) --left;
  if (left + roster.joiners.size() < static_cast<std::size_t>(roster.min_size)) {
    refuse("member " + id + " cannot " + what + ": " + std::to_string(left) +
           " workers would be left, and the job needs at least " +
           std::to_string(roster.min_size));
  }
}

void note_gone(Roster& roster, const Member& member, Departure how, const std::string& reason) {
  roster.gone.push_back({member.id, member.host, how, reason, roster.version});
  if (roster.gone.size() > kGoneKept) roster.gone.erase(roster.gone.begin());
}

// The view `members` begins. Whoever is not in it has to be told apart before.
void begin_view(Roster& roster, std::vector<Member> members, const std::string& reason) {
  roster.members = std::move(members);
  roster.reason = reason;
  roster.call_reason.clear();
  roster.present.clear();
  std::erase_if(roster.leaving,
                [&](const std::string& id) { return roster.find(id) == nullptr; });
  std::erase_if(roster.excluded,
                [&](const auto& entry) { return roster.find(entry.first) == nullptr; });
  std::erase_if(roster.joiners,
                [&](const Member& joiner) { return roster.find(joiner.id) != nullptr; });
}

std::string why_gone(const Roster& roster, const Member& member, Departure& how) {
  const auto excluded = roster.excluded.find(member.id);
  if (excluded != roster.excluded.end()) {
    how = Departure::excluded;
    return excluded->second;
  }
  if (holds(roster.leaving, member.id)) {
    how = Departure::left;
    return "it asked to leave";
  }
  how = Departure::resized;
  return "the job was made smaller, to " + std::to_string(roster.target) + " workers";
}

}  // namespace

const Member* Roster::find(const std::string& id) const noexcept {
  const int rank = rank_of(id);
  return rank < 0 ? nullptr : &members[static_cast<std::size_t>(rank)];
}

int Roster::rank_of(const std::string& id) const noexcept {
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].id == id) return static_cast<int>(rank);
  }
  return -1;
}

const Gone* Roster::departed(const std::string& id) const noexcept {
  for (auto entry = gone.rbegin(); entry != gone.rend(); ++entry) {
    if (entry->id == id) return &*entry;
  }
  return nullptr;
}

Roster make_roster(std::int64_t founders, std::int64_t min_size, std::int64_t max_size) {
  if (!(1 <= min_size && min_size <= founders && founders <= max_size)) {
    refuse("a job needs 1 <= min <= workers <= max, got min " + std::to_string(min_size) +
           ", workers " + std::to_string(founders) + ", max " + std::to_string(max_size));
  }
  Roster roster;
  roster.founders = founders;
  roster.min_size = min_size;
  roster.max_size = max_size;
  return roster;
}

std::vector<Member> wanted(const Roster& roster) {
  std::vector<Member> next = remaining(roster);
  std::size_t room = most(roster);
  const auto has_state = [](const Member& member) { return member.settled; };
  if (std::none_of(next.begin(), next.end(), has_state)) {
    // all that have the state want to go: first they hand it over, then they leave
    if (roster.joiners.empty()) return roster.members;
    next = roster.members;
    room = std::max(room, next.size() + 1);
  }
  if (next.size() > room) next.resize(room);
  for (const Member& joiner : roster.joiners) {
    if (next.size() < room) next.push_back(joiner);
  }
  return next.size() < static_cast<std::size_t>(roster.min_size) ? roster.members : next;
}

bool change_wanted(const Roster& roster) {
  const std::vector<Member> next = wanted(roster);
  return !std::equal(next.begin(), next.end(), roster.members.begin(), roster.members.end(),
                     [](const Member& a, const Member& b) { return a.id == b.id; });
}

bool arrive(Roster& roster, std::int64_t rank, Member member) {
  if (rank < 0 || rank >= roster.founders) {
    refuse("rank must be in [0, " + std::to_string(roster.founders) + "), got " +
           std::to_string(rank));
  }
  if (roster.version > 0 || !roster.ended.empty()) return false;
  member.settled = true;
  roster.arrived.insert_or_assign(rank, std::move(member));
  if (roster.arrived.size() < static_cast<std::size_t>(roster.founders)) return true;
  std::vector<Member> members;
  for (auto& [place, founder] : roster.arrived) members.push_back(founder);
  roster.arrived.clear();
  roster.version = 1;
  begin_view(roster, std::move(members), "the job begins");
  return true;
}

bool join(Roster& roster, Member member) {
  if (!roster.ended.empty()) refuse("the job is over: " + roster.ended);
  const auto same = [&](const Member& other) { return other.id == member.id; };
  if (roster.find(member.id) != nullptr ||
      std::any_of(roster.joiners.begin(), roster.joiners.end(), same)) {
    return false;
  }
  member.settled = false;
  roster.joiners.push_back(std::move(member));
  return true;
}

bool forget(Roster& roster, const std::string& id) {
  return std::erase_if(roster.joiners, [&](const Member& m) { return m.id == id; }) > 0;
}

bool leave(Roster& roster, const std::string& id) {
  check_departure(roster, id, "leave");
  if (holds(roster.leaving, id)) return false;
  roster.leaving.push_back(id);
  return true;
}

bool exclude(Roster& roster, const std::string& id, const std::string& reason) {
  check_departure(roster, id, "be excluded");
  return roster.excluded.emplace(id, reason.empty() ? "it was excluded" : reason).second;
}

bool resize(Roster& roster, std::int64_t world_size, const std::string& reason) {
  if (world_size < roster.min_size || world_size > roster.max_size) {
    refuse("world_size must be in [" + std::to_string(roster.min_size) + ", " +
           std::to_string(roster.max_size) + "], the job's limits, got " +
           std::to_string(world_size) + (reason.empty() ? "" : " (" + reason + ")"));
  }
  if (roster.target == world_size) return false;
  roster.target = world_size;
  return true;
}

bool install(Roster& roster, std::int64_t version) {
  if (roster.version != version || roster.calling() || !roster.ended.empty()) return false;
  std::vector<Member> next = wanted(roster);
  const std::vector<Member> before = roster.members;
  ++roster.version;
  std::string text;
  const auto add = [&](const std::string& words) {
    text += (text.empty() ? "" : "; ") + words;
  };
  for (const Member& member : before) {
    const auto same = [&](const Member& other) { return other.id == member.id; };
    if (std::any_of(next.begin(), next.end(), same)) continue;
    Departure how{};
    const std::string why = why_gone(roster, member, how);
    note_gone(roster, member, how, why);
    add(member.id + " is out: " + why);
  }
  for (const Member& member : next) {
    if (roster.find(member.id) == nullptr) add(member.id + " joins");
  }
  begin_view(roster, std::move(next), text.empty() ? "nothing changed" : text);
  return true;
}

bool settle(Roster& roster, const std::string& id) {
  const int rank = roster.rank_of(id);
  if (rank < 0 || roster.members[static_cast<std::size_t>(rank)].settled) return false;
  roster.members[static_cast<std::size_t>(rank)].settled = true;
  return true;
}

bool call_roll(Roster& roster, std::int64_t version, const std::string& id,
               const std::string& reason) {
  if (roster.version != version || !roster.ended.empty()) return false;
  if (roster.find(id) == nullptr) return false;
  bool changed = false;
  if (!roster.calling()) {
    roster.call_reason = reason.empty() ? "a session failed" : reason;
    changed = true;
  }
  if (!holds(roster.present, id)) {
    roster.present.push_back(id);
    changed = true;
  }
  return changed;
}

bool conclude(Roster& roster, std::int64_t version, const std::vector<std::string>& dead,
              const std::string& reason) {
  if (roster.version != version || !roster.calling() || !roster.ended.empty()) return false;
  std::vector<Member> next;
  std::vector<Member> again;
  std::vector<Member> lost;
  for (const Member& member : roster.members) {
    if (holds(dead, member.id)) {
      lost.push_back(member);
    } else if (!holds(roster.present, member.id)) {
      return false;
    } else {
      (member.settled ? next : again).push_back(member);
    }
  }
  if (next.size() < static_cast<std::size_t>(roster.min_size)) {
    return end(roster, std::to_string(next.size()) + " workers are left and the job needs " +
                           std::to_string(roster.min_size) + " (" + reason + ")");
  }
  ++roster.version;
  for (const Member& member : lost) note_gone(roster, member, Departure::lost, reason);
  begin_view(roster, std::move(next), reason);
  roster.joiners.insert(roster.joiners.begin(), again.begin(), again.end());
  return true;
}

bool end(Roster& roster, const std::string& reason) {
  if (!roster.ended.empty()) return false;
  roster.ended = reason;
  return true;
}

Reconciled reconcile(const std::vector<std::int64_t>& counts) {
  Reconciled out;
  out.committed = counts.empty() ? -1 : *std::max_element(counts.begin(), counts.end());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const int rank = static_cast<int>(i);
    if (counts[i] == out.committed) {
      out.sources.push_back(rank);
    } else if (counts[i] == -1) {
      out.newcomers.push_back(rank);
    } else if (counts[i] == out.committed - 1) {
      out.laggards.push_back(rank);
    } else {
      throw Error(ErrorCode::internal,
                  "rank " + std::to_string(rank) + " has completed " +
                      std::to_string(counts[i]) + " steps and another rank " +
                      std::to_string(out.committed) + "; they differ by one at most");
    }
  }
  if (out.committed < 0) {
    throw Error(ErrorCode::internal, "no rank of the view has the job's state");
  }
  return out;
}

const char* to_string(Departure how) noexcept {
  switch (how) {
    case Departure::left:
      return "left";
    case Departure::excluded:
      return "excluded";
    case Departure::resized:
      return "resized";
    case Departure::lost:
      return "lost";
  }
  return "unknown";
}

}  // namespace kf
