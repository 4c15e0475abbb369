#include "session/select.h"

#include <algorithm>
#include <bit>

#include "kf/generators.h"

namespace kf {

namespace {

// Largest buffer of two ranks for which one round counts more than how memory is used. Above,
// both ways send the same bytes, but only with a ring is no chunk sent and received at once, so
// that ranks of one host can read each other's memory in place.
constexpr std::int64_t kExchanged = 32 * 1024;

// By powers of two, so that a session keeps few plans however many sizes it meets.
std::string automatic(std::int64_t buffer_bytes) {
  const auto bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(buffer_bytes, 1));
  return "auto(buffer_bytes=" + std::to_string(std::bit_ceil(bytes)) + ")";
}

}  // namespace

std::string select_schedule(std::string_view session_spec, Collective collective,
                            std::int64_t buffer_bytes, int world_size) {
  if (session_spec == "auto" && collective == Collective::all_reduce && world_size == 2 &&
      buffer_bytes > kExchanged) {
    return "ring";
  }
  if (session_spec == "auto") return automatic(buffer_bytes);
  const auto offered = collectives_of(session_spec);
  if (std::find(offered.begin(), offered.end(), collective) != offered.end()) {
    return std::string(session_spec);
  }
  return automatic(buffer_bytes);
}

}  // namespace kf
