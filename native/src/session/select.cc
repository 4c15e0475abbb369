#include "session/select.h"

#include <algorithm>
#include <bit>

#include "kf/generators.h"
#include "schedule/spec.h"

namespace kf {

namespace {

// Largest buffer of two ranks for which one round counts more than how memory is used. Above,
// both ways send the same bytes, but only with a ring is no chunk sent and received at once, so
// that ranks of one host can read each other's memory in place.
constexpr std::int64_t kExchanged = 32 * 1024;

// By powers of two, so that a session keeps few plans however many sizes it meets.
std::string automatic(std::string_view session_spec, std::int64_t buffer_bytes, bool in_group) {
  const auto bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(buffer_bytes, 1));
  std::string spec = "auto(buffer_bytes=" + std::to_string(std::bit_ceil(bytes));
  for (const Argument& argument : parse_spec(session_spec).arguments) {
    if (argument.key == "buffer_bytes" || argument.key.empty()) {
      return std::string(session_spec);  // the user's own size holds for all operations
    }
    const bool of_hosts = argument.key == "ranks_per_host" || argument.key.starts_with("host_");
    if (!(in_group && of_hosts)) spec += "," + argument.key + "=" + argument.value;
  }
  return spec + ")";
}

}  // namespace

std::string select_schedule(std::string_view session_spec, Collective collective,
                            std::int64_t buffer_bytes, int world_size, bool in_group) {
  if (session_spec == "auto" || session_spec.starts_with("auto(")) {
    if (collective == Collective::all_reduce && world_size == 2 && buffer_bytes > kExchanged) {
      return "ring";
    }
    return automatic(session_spec, buffer_bytes, in_group);
  }
  const auto offered = collectives_of(session_spec);
  if (std::find(offered.begin(), offered.end(), collective) != offered.end()) {
    return std::string(session_spec);
  }
  return automatic("auto", buffer_bytes, in_group);
}

}  // namespace kf
