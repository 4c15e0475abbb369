// Who takes part in a job, and how that changes: one document, the roster, and the only moves
// that may be made on it. A state machine: no I/O, no threads, no clock, no randomness.
//
// Terms: roster: what the job's store holds under one key; changed by compare-and-set only, so
//        that its versions form one line;
//        joiner: a worker that is ready and waits to be taken in;
//        settled: has the job's state, so it may be a source of it;
//        roll call: after a failure, the survivors of a view say that they are there;
//        wanted view: the members of the next planned view, see wanted().
// Threads: values; one thread at a time.
//
// A view ends in one of two ways. Planned: all its members are at the same step boundary and
// know that a change is wanted; each calls install(). Failure: a member that lost its session
// calls the roll; whoever sees the call answers and leaves the session too; when all members
// have answered or are known to be dead, one of them calls conclude(). Both move on to version
// + 1 of the same document, so for each version there is one list of members, whoever wins.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kf {

struct Member {
  std::string id;        // unique, for the life of the process
  std::string address;   // where it takes connections of the next view, host:port
  std::string door;      // where it tells that it lives, host:port
  std::string host;      // name of its machine
  std::int64_t pid = 0;  // on that machine
  bool settled = false;
};

enum class Departure : std::uint8_t {
  left,      // it asked
  excluded,  // the others asked
  resized,   // the job was made smaller
  lost,      // it died, fell silent, or its connections broke
};

struct Gone {
  std::string id;
  std::string host;
  Departure how = Departure::left;
  std::string reason;
  std::int64_t version = 0;  // the first view without it
};

struct Roster {
  std::int64_t version = 0;     // of the view; 0 until all founders have arrived
  std::string reason;           // why this view came
  std::vector<Member> members;  // by rank
  std::int64_t founders = 1;    // workers that form the first view
  std::int64_t min_size = 1;
  std::int64_t max_size = 1;
  std::map<std::int64_t, Member> arrived;       // by rank in the first view; until version 1
  std::int64_t target = 0;                      // workers wanted; 0: as many as there are
  std::vector<Member> joiners;                  // in the order of their coming
  std::vector<std::string> leaving;             // members that asked to leave
  std::map<std::string, std::string> excluded;  // member that the others want out -> reason
  std::string call_reason;           // why the roll of this view is called; empty: it is not
  std::vector<std::string> present;  // members that have answered
  std::vector<Gone> gone;            // the latest kGoneKept departures, oldest first
  std::string ended;                 // why the job is over; empty: it is not

  bool calling() const noexcept { return !call_reason.empty(); }
  const Member* find(const std::string& id) const noexcept;  // among the members
  int rank_of(const std::string& id) const noexcept;         // -1: not a member
  const Gone* departed(const std::string& id) const noexcept;
};

inline constexpr std::size_t kGoneKept = 256;

// A roster for a new job. Throws Error{usage} unless 1 <= min <= founders <= max.
Roster make_roster(std::int64_t founders, std::int64_t min_size, std::int64_t max_size);

// Members of the next planned view: those that stay, in their order, then joiners as far as
// there is room; the members of now when nothing is wanted or it would be fewer than min_size.
// When all that have the state want to go, they stay for one view more, to hand it over.
std::vector<Member> wanted(const Roster& roster);
bool change_wanted(const Roster& roster);

// The moves. Each returns whether the roster changed; false means that somebody else was
// first, or that nothing is to be done. All throw Error{usage} with the rule when refused.

// A founder has come; a later one with the same rank takes the place of an earlier one. The
// last one forms view 1. Throws Error{usage}: no such rank.
bool arrive(Roster& roster, std::int64_t rank, Member member);
// A worker is ready to be taken in. Throws Error{usage}: the job is over.
bool join(Roster& roster, Member member);
// A joiner that gave up or died.
bool forget(Roster& roster, const std::string& id);
// A member wants to leave at the next boundary. Throws Error{usage}: it is not a member, or
// fewer than min_size would be left.
bool leave(Roster& roster, const std::string& id);
// The others want a member out. Throws as leave does.
bool exclude(Roster& roster, const std::string& id, const std::string& reason);
// Another number of workers is wanted. Throws Error{usage}: outside [min_size, max_size].
bool resize(Roster& roster, std::int64_t world_size, const std::string& reason);
// A planned view: called by members of `version` that are all at one boundary. Unless a roll
// is called or the view is over, goes on to the wanted view.
bool install(Roster& roster, std::int64_t version);
// A new member has got the state.
bool settle(Roster& roster, const std::string& id);
// A member has lost the session of `version`: the roll is called, and it is there.
bool call_roll(Roster& roster, std::int64_t version, const std::string& id,
               const std::string& reason);
// All members of `version` have answered or are in `dead`: goes on to the view of those that
// answered. New members without the state become joiners again. With fewer than min_size
// settled ones the job is over. False while some member has neither answered nor died.
bool conclude(Roster& roster, std::int64_t version, const std::vector<std::string>& dead,
              const std::string& reason);
// The job is over.
bool end(Roster& roster, const std::string& reason);

// What members of a new view that have the state do before anything else. A member's count is
// the number of steps whose result it has; -1: it has no state.
struct Reconciled {
  std::int64_t committed = 0;  // steps committed
  std::vector<int> sources;    // ranks that have the result of the last one
  std::vector<int> laggards;   // ranks that need it
  std::vector<int> newcomers;  // ranks that need the state
};
// Throws Error{internal}: nobody has the state, or counts differ by more than one step, which
// the all-reduce makes impossible: a step is completed only when all members have contributed
// to it, and a member contributes only when it has completed the one before.
Reconciled reconcile(const std::vector<std::int64_t>& counts);

const char* to_string(Departure how) noexcept;

}  // namespace kf
