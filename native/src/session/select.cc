#include "session/select.h"

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "kf/generators.h"
#include "schedule/spec.h"

namespace kf {

namespace {

// Largest buffer of two ranks for which one round counts more than how memory is used. Above,
// both ways send the same bytes, but only with a ring is no chunk sent and received at once, so
// that ranks of one host can read each other's memory in place.
constexpr std::int64_t kExchanged = 32 * 1024;

// Ranks in a row that each host of a group has; 1 where that is not the same for all. `hosts`:
// of the members, in their order.
int row_length(const std::vector<int>& hosts) {
  std::vector<int> seen;
  std::size_t length = 0;
  for (std::size_t begin = 0; begin < hosts.size();) {
    std::size_t end = begin;
    while (end < hosts.size() && hosts[end] == hosts[begin]) ++end;
    if (length == 0) length = end - begin;
    const bool again = std::find(seen.begin(), seen.end(), hosts[begin]) != seen.end();
    if (again || end - begin != length) return 1;
    seen.push_back(hosts[begin]);
    begin = end;
  }
  return static_cast<int>(length);
}

// The arguments of a session's `auto`, for a group of its ranks.
std::vector<Argument> for_members(std::vector<Argument> arguments,
                                  std::span<const int> members) {
  int per_host = 1;
  for (const Argument& argument : arguments) {
    if (argument.key == "ranks_per_host") per_host = std::stoi(argument.value);
  }
  std::vector<int> hosts;
  for (const int member : members) hosts.push_back(member / per_host);
  const int row = row_length(hosts);
  const bool one_host = per_host > 1 && row == static_cast<int>(members.size());
  const bool several = per_host > 1 && row > 1 && !one_host;
  std::vector<Argument> kept;
  for (Argument& argument : arguments) {
    const bool inside = argument.key == "host_latency_s" || argument.key == "host_bytes_per_s";
    if (argument.key == "ranks_per_host") {
      if (several) kept.push_back({argument.key, std::to_string(row)});
    } else if (one_host && inside) {
      kept.push_back({argument.key.substr(std::string_view("host_").size()), argument.value});
    } else if (one_host
                   ? !inside && argument.key != "latency_s" && argument.key != "bytes_per_s"
                   : several || !inside) {
      kept.push_back(std::move(argument));
    }
  }
  return kept;
}

// By powers of two, so that a session keeps few plans however many sizes it meets.
std::string automatic(std::string_view session_spec, std::int64_t buffer_bytes,
                      std::span<const int> members) {
  const auto bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(buffer_bytes, 1));
  std::vector<Argument> arguments = parse_spec(session_spec).arguments;
  for (const Argument& argument : arguments) {
    if (argument.key == "buffer_bytes" || argument.key.empty()) {
      return std::string(session_spec);  // the user's own size holds for all operations
    }
  }
  if (!members.empty()) arguments = for_members(std::move(arguments), members);
  std::string spec = "auto(buffer_bytes=" + std::to_string(std::bit_ceil(bytes));
  for (const Argument& argument : arguments) spec += "," + argument.key + "=" + argument.value;
  return spec + ")";
}

}  // namespace

std::string select_schedule(std::string_view session_spec, Collective collective,
                            std::int64_t buffer_bytes, int world_size,
                            std::span<const int> members) {
  if (session_spec == "auto" || session_spec.starts_with("auto(")) {
    if (collective == Collective::all_reduce && world_size == 2 && buffer_bytes > kExchanged) {
      return "ring";
    }
    return automatic(session_spec, buffer_bytes, members);
  }
  const auto offered = collectives_of(session_spec);
  if (std::find(offered.begin(), offered.end(), collective) != offered.end()) {
    return std::string(session_spec);
  }
  return automatic("auto", buffer_bytes, members);
}

}  // namespace kf
