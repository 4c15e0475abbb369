// Agreed change: one rank's copy of a job's configuration and the rule by which it changes.
// A state machine: no I/O, no threads, no clock, no randomness.
//
// Terms: setting: a named value that may change while the job runs; configuration: all
// settings;
//        proposal: the changes this rank wants next; install: a proposal becomes the
//        configuration; boundary: the point between two steps, the only place where anything is
//        installed; digest: <= 53 bits over step, view, configuration and proposal, carried as
//        a float64.
// Threads: one engine belongs to one thread.
//
// How ranks agree. Each step every rank puts the words (d, -d) of its digest d into the control
// block, which is max-reduced with the gradients. max(d) == -max(-d) exactly when all ranks
// sent the same d, that is when they are at the same step, hold the same configuration and
// propose the same changes. Then the proposal is installed at this step's boundary, on all
// ranks; otherwise nothing is, anywhere. So agreement costs no message of its own.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kf/error.h"

namespace kf {

// What a setting means to the runtime that installs it. A new kind of change is a new
// enumerator and a setting of that kind; the rule above stays.
enum class SettingKind : std::uint8_t {
  hyper,
  schedule,
  world_size,
  stop,
  sync_mode,     // how workers are kept together: averaged gradients or averaged models
  bucket_bytes,  // where gradients are cut into operations
  compression,   // how gradients travel
  checkpoint,    // the step after which to save
  member,        // who has to leave
};

using Value = std::variant<double, std::string>;

struct Setting {
  std::string name;  // unique within a configuration
  SettingKind kind = SettingKind::hyper;
  Value value;            // its type never changes
  double minimum = 0;     // numbers only: smallest value allowed
  double maximum = 0;     // numbers only: largest value allowed
  bool integral = false;  // numbers only: fractions are refused
};

struct Change {
  std::string name;    // of a setting
  Value value;         // wanted
  std::string reason;  // for people; not part of what ranks agree on
  std::string policy;  // who wants it
};

// One line of the decision log.
struct Installed {
  std::int64_t step = 0;            // the step whose boundary installed it, from 1
  std::int64_t view_version = 0;    // after the install
  std::int64_t config_version = 0;  // after the install
  SettingKind kind = SettingKind::hyper;
  std::string name;
  Value old_value;
  Value new_value;
  std::string reason;
  std::string policy;
};

enum class Verdict : std::uint8_t {
  unchanged,  // all agree that nothing changes
  installed,  // all proposed the same; it is in force now
  conflict,   // digests differ; nothing changed; exchange texts, then call raise_conflict
};

struct Decision {
  Verdict verdict = Verdict::unchanged;
  std::vector<Installed> installed;  // sorted by setting name
};

class Engine {
 public:
  // Throws Error{usage}: no name, a name twice, or a value outside its own bounds.
  Engine(const std::vector<Setting>& settings, std::int64_t view_version);

  // Adds changes to this rank's proposal for the coming step. A value that is already in force
  // is remembered only to find contradictions. Throws Error{usage}: unknown setting, wrong
  // type, out of bounds; the proposal is as before. Throws Error{conflict}: another policy
  // wants a different value; the proposal is dropped.
  void propose(const std::vector<Change>& changes);

  // Drops this rank's proposal.
  void withdraw() noexcept { proposal_.clear(); }

  // The two float64 words of this rank for the coming step, to be max-reduced over all ranks.
  std::array<double, 2> digest_words() const;

  // Ends a step with the max-reduced words. On `conflict` the proposal is kept until
  // raise_conflict, so that its text can be exchanged.
  // Throws Error{internal}: the words do not contain this rank's own.
  Decision decide(std::span<const double, 2> reduced);

  // This rank's step, view, configuration and proposal as one line of at most kTextBytes bytes.
  std::string proposal_text() const;

  // Drops the proposal. Throws Error{conflict} that says which ranks said what.
  [[noreturn]] void raise_conflict(const std::vector<std::string>& text_by_rank);

  // Goes on in another view, at a step and configuration that all its members agreed on. What
  // this rank proposes stays. Throws Error{usage}: a value out of bounds.
  void enter_view(std::int64_t view_version, std::int64_t world_size, std::int64_t step,
                  std::int64_t config_version);

  // This rank's proposal for the coming step, sorted by setting name.
  std::vector<Change> proposal() const;

  const Value& value(const std::string& name) const;  // Throws Error{usage}: unknown setting
  double number(const std::string& name) const;       // Throws Error{usage}: unknown or a text
  const std::string& text(const std::string& name) const;  // likewise, or a number
  bool has_proposal() const;                            // something would change if all agreed
  std::int64_t step() const noexcept { return step_; }  // steps decided so far
  std::int64_t view_version() const noexcept { return view_version_; }
  std::int64_t config_version() const noexcept { return config_version_; }
  std::vector<Setting> settings() const;  // sorted by name

  static constexpr std::size_t kTextBytes = 512;

 private:
  const Setting& find(const std::string& name) const;
  void check(const Setting& setting, const Value& value, const std::string& who) const;
  std::uint64_t digest() const;
  bool resizes() const;  // the proposal changes the world size
  void refresh_configuration_hash();

  std::map<std::string, Setting> settings_;
  std::map<std::string, Change> proposal_;
  std::int64_t step_ = 0;
  std::int64_t view_version_;
  std::int64_t config_version_ = 0;
  std::int64_t conflict_step_ = -1;  // step whose digests differed, until raise_conflict
  std::uint64_t configuration_hash_ = 0;
};

// How a value is written in messages and texts: numbers as %.17g without needless digits.
std::string to_string(const Value& value);
const char* to_string(SettingKind kind) noexcept;

}  // namespace kf
