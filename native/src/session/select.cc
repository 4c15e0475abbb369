#include "session/select.h"

#include <algorithm>
#include <bit>

#include "kf/generators.h"

namespace kf {

namespace {

// By powers of two, so that a session keeps few plans however many sizes it meets.
std::string automatic(std::int64_t buffer_bytes) {
  const auto bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(buffer_bytes, 1));
  return "auto(buffer_bytes=" + std::to_string(std::bit_ceil(bytes)) + ")";
}

}  // namespace

std::string select_schedule(std::string_view session_spec, Collective collective,
                            std::int64_t buffer_bytes) {
  if (session_spec == "auto") return automatic(buffer_bytes);
  const auto offered = collectives_of(session_spec);
  if (std::find(offered.begin(), offered.end(), collective) != offered.end()) {
    return std::string(session_spec);
  }
  return automatic(buffer_bytes);
}

}  // namespace kf
