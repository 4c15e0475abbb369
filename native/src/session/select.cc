#include "session/select.h"

#include <algorithm>

#include "kf/generators.h"

namespace kf {

namespace {

// Below this size the number of rounds decides, above it the bytes a rank sends.
constexpr std::int64_t kLatencyBound = 32 * 1024;

const char* stand_in(Collective collective, std::int64_t buffer_bytes) {
  switch (collective) {
    case Collective::all_reduce:
      return buffer_bytes <= kLatencyBound ? "recursive_doubling" : "ring";
    case Collective::reduce:
    case Collective::broadcast:
      return buffer_bytes <= kLatencyBound ? "binomial_tree" : "ring";
    case Collective::reduce_scatter:
    case Collective::all_gather:
      return "ring";
    case Collective::gather:
    case Collective::scatter:
      return "star";
    case Collective::all_to_all:
      return "pairwise";
    case Collective::barrier:
      return "dissemination";
  }
  return "ring";
}

}  // namespace

std::string select_schedule(std::string_view session_spec, Collective collective,
                            std::int64_t buffer_bytes) {
  const std::string_view name = session_spec.substr(0, session_spec.find('('));
  if (name != "auto") {
    const auto offered = collectives_of(name);
    if (std::find(offered.begin(), offered.end(), collective) != offered.end()) {
      return std::string(session_spec);
    }
  }
  return stand_in(collective, buffer_bytes);
}

}  // namespace kf
