#include "kf/engine.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <sstream>
#include <utility>

namespace kf {
namespace {

constexpr int kDigestBits = 53;  // every integer up to 2^53 is exact in a float64

// Finaliser of splitmix64: each input bit moves every output bit.
// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::uint64_t combine(std::uint64_t hash, std::uint64_t word) {
  return mix(hash ^ mix(word));
}

// FNV-1a, 64 bits. Source: Fowler, Noll, Vo, IETF draft-eastlake-fnv.
std::uint64_t combine(std::uint64_t hash, const std::string& text) {
  std::uint64_t fnv = 0xcbf29ce484222325u;
  for (const char c : text) fnv = (fnv ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return combine(combine(hash, fnv), text.size());
}

std::uint64_t combine(std::uint64_t hash, const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return combine(hash ^ 1, *text);
  const double number = std::get<double>(value);
  return combine(hash, std::bit_cast<std::uint64_t>(number == 0 ? 0.0 : number));  // -0 is 0
}

std::string who(const std::string& policy) {
  return policy.empty() ? "the caller" : "policy " + policy;
}

// "1, 2 and 5"
std::string join_ranks(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) out += i + 1 == ranks.size() ? " and " : ", ";
    out += std::to_string(ranks[i]);
  }
  return out;
}

}  // namespace

Engine::Engine(const std::vector<Setting>& settings, std::int64_t view_version)
    : view_version_(view_version) {
  for (const Setting& setting : settings) {
    if (setting.name.empty())
      throw Error(ErrorCode::usage, "a setting must have a name, got ''");
    check(setting, setting.value, "the first configuration");
    if (!settings_.emplace(setting.name, setting).second) {
      throw Error(ErrorCode::usage,
                  "setting " + setting.name + " is given twice; names are unique");
    }
  }
  refresh_configuration_hash();
}

void Engine::propose(const std::vector<Change>& changes) {
  auto proposal = proposal_;
  for (const Change& change : changes) {
    check(find(change.name), change.value, who(change.policy));
    const auto [at, added] = proposal.emplace(change.name, change);
    if (added || at->second.value == change.value) continue;
    const Change other = at->second;
    proposal_.clear();
    throw Error(ErrorCode::conflict, who(other.policy) + " wants " + change.name + " = " +
                                         to_string(other.value) + ", " + who(change.policy) +
                                         " wants " + to_string(change.value) +
                                         " at the same boundary; nothing was changed");
  }
  proposal_ = std::move(proposal);
}

std::array<double, 2> Engine::digest_words() const {
  const auto word = static_cast<double>(digest());
  return {word, -word};
}

Decision Engine::decide(std::span<const double, 2> reduced) {
  const auto own = static_cast<double>(digest());
  if (!(reduced[0] >= own && reduced[1] >= -own)) {
    throw Error(
        ErrorCode::internal,
        "reduced digest words do not contain this rank's own: the control block was not "
        "max-reduced over all ranks, or a proposal was made while it travelled");
  }
  ++step_;
  Decision decision;
  if (reduced[0] != -reduced[1]) {
    conflict_step_ = step_;
    decision.verdict = Verdict::conflict;
    return decision;
  }
  if (has_proposal()) {
    decision.verdict = Verdict::installed;
    ++config_version_;
    if (resizes()) ++view_version_;  // another set of workers is another view
    for (auto& [name, change] : proposal_) {
      Setting& setting = settings_.at(name);
      if (setting.value == change.value) continue;
      decision.installed.push_back({step_, view_version_, config_version_, setting.kind, name,
                                    setting.value, change.value, change.reason, change.policy});
      setting.value = change.value;
    }
    refresh_configuration_hash();
  }
  proposal_.clear();
  return decision;
}

std::string Engine::proposal_text() const {
  std::ostringstream out;
  const std::int64_t step = conflict_step_ >= 0 ? conflict_step_ : step_ + 1;
  out << "step " << step << ", view " << view_version_ << ", configuration " << config_version_
      << " (" << std::hex << (configuration_hash_ >> 40) << std::dec << "): ";
  bool first = true;
  for (const auto& [name, change] : proposal_) {
    if (find(name).value == change.value) continue;
    out << (first ? "" : ", ") << name << " = " << to_string(change.value) << " ("
        << who(change.policy) << ")";
    first = false;
  }
  if (first) out << "no change";
  std::string text = out.str();
  if (text.size() > kTextBytes) text = text.substr(0, kTextBytes - 3) + "...";
  return text;
}

void Engine::raise_conflict(const std::vector<std::string>& text_by_rank) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;  // in order of the first rank
  for (std::size_t rank = 0; rank < text_by_rank.size(); ++rank) {
    auto group = groups.begin();
    while (group != groups.end() && group->first != text_by_rank[rank]) ++group;
    if (group == groups.end()) group = groups.insert(group, {text_by_rank[rank], {}});
    group->second.push_back(static_cast<int>(rank));
  }
  std::string message = "ranks proposed different changes; nothing was changed";
  for (const auto& [text, ranks] : groups) message += "; " + join_ranks(ranks) + ": " + text;
  proposal_.clear();
  conflict_step_ = -1;
  throw Error(ErrorCode::conflict, message);
}

void Engine::enter_view(std::int64_t view_version, std::int64_t world_size, std::int64_t step,
                        std::int64_t config_version) {
  for (auto& [name, setting] : settings_) {
    if (setting.kind != SettingKind::world_size) continue;
    const Value size = static_cast<double>(world_size);
    check(setting, size, "the new view");
    setting.value = size;
  }
  view_version_ = view_version;
  step_ = step;
  config_version_ = config_version;
  conflict_step_ = -1;
  refresh_configuration_hash();
}

std::vector<Change> Engine::proposal() const {
  std::vector<Change> changes;
  for (const auto& [name, change] : proposal_) changes.push_back(change);
  return changes;
}

const Value& Engine::value(const std::string& name) const {
  return find(name).value;
}

double Engine::number(const std::string& name) const {
  const auto* number = std::get_if<double>(&find(name).value);
  if (number == nullptr) throw Error(ErrorCode::usage, "setting " + name + " is a text");
  return *number;
}

const std::string& Engine::text(const std::string& name) const {
  const auto* text = std::get_if<std::string>(&find(name).value);
  if (text == nullptr) throw Error(ErrorCode::usage, "setting " + name + " is a number");
  return *text;
}

bool Engine::has_proposal() const {
  for (const auto& [name, change] : proposal_) {
    if (find(name).value != change.value) return true;
  }
  return false;
}

bool Engine::resizes() const {
  for (const auto& [name, change] : proposal_) {
    const Setting& setting = find(name);
    if (setting.kind == SettingKind::world_size && setting.value != change.value) return true;
  }
  return false;
}

std::vector<Setting> Engine::settings() const {
  std::vector<Setting> out;
  for (const auto& [name, setting] : settings_) out.push_back(setting);
  return out;
}

const Setting& Engine::find(const std::string& name) const {
  const auto at = settings_.find(name);
  if (at != settings_.end()) return at->second;
  std::string known;
  for (const auto& [other, setting] : settings_) known += (known.empty() ? "" : ", ") + other;
  throw Error(ErrorCode::usage, "no setting is named '" + name + "'; there are: " + known);
}

void Engine::check(const Setting& setting, const Value& value,
                   const std::string& origin) const {
  const auto fail = [&](const std::string& rule) {
    throw Error(ErrorCode::usage, setting.name + " must be " + rule + ", got " +
                                      to_string(value) + " from " + origin);
  };
  const bool wants_text = std::holds_alternative<std::string>(setting.value);
  if (const auto* text = std::get_if<std::string>(&value)) {
    if (!wants_text) fail("a number");
    if (text->empty()) fail("a text that is not empty");
    return;
  }
  if (wants_text) fail("a text");
  const double number = std::get<double>(value);
  const bool whole = !setting.integral || number == std::floor(number);
  if (!(number >= setting.minimum && number <= setting.maximum) || !whole) {  // NaN fails here
    fail((setting.integral ? "an integer in [" : "in [") + to_string(Value(setting.minimum)) +
         ", " + to_string(Value(setting.maximum)) + "]");
  }
}

// Never changes between two decisions except by propose, so fill and decide see the same.
std::uint64_t Engine::digest() const {
  std::uint64_t hash = combine(configuration_hash_, static_cast<std::uint64_t>(step_ + 1));
  for (const auto& [name, change] : proposal_) {
    if (find(name).value == change.value) continue;
    hash = combine(combine(hash, name), change.value);
  }
  return hash >> (64 - kDigestBits);
}

void Engine::refresh_configuration_hash() {
  std::uint64_t hash = combine(static_cast<std::uint64_t>(view_version_),
                               static_cast<std::uint64_t>(config_version_));
  for (const auto& [name, setting] : settings_)
    hash = combine(combine(hash, name), setting.value);
  configuration_hash_ = hash;
}

std::string to_string(const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  std::array<char, 32> buffer{};
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), std::get<double>(value));
  return {buffer.data(), end.ptr};
}

const char* to_string(SettingKind kind) noexcept {
  switch (kind) {
    case SettingKind::hyper:
      return "hyper";
    case SettingKind::schedule:
      return "schedule";
    case SettingKind::world_size:
      return "world_size";
    case SettingKind::stop:
      return "stop";
    case SettingKind::sync_mode:
      return "sync_mode";
    case SettingKind::bucket_bytes:
      return "bucket_bytes";
    case SettingKind::compression:
      return "compression";
    case SettingKind::checkpoint:
      return "checkpoint";
    case SettingKind::member:
      return "member";
  }
  return "unknown";
}

}  // namespace kf
