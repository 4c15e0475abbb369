#include "kf/schedule.h"

#include <algorithm>
#include <array>
#include <utility>

#include "schedule/spec.h"

namespace kf {

namespace {

constexpr std::array kCollectives = {
    Collective::all_reduce,     Collective::reduce,     Collective::broadcast,
    Collective::reduce_scatter, Collective::all_gather, Collective::gather,
    Collective::scatter,        Collective::all_to_all, Collective::barrier,
};

}  // namespace

ChunkRange chunk_range(std::int64_t units, int chunk_count, int chunk) noexcept {
  const std::int64_t base = units / chunk_count;
  const std::int64_t longer = units % chunk_count;
  return {chunk * base + std::min<std::int64_t>(chunk, longer),
          base + (chunk < longer ? 1 : 0)};
}

const char* to_string(Collective collective) noexcept {
  switch (collective) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::reduce:
      return "reduce";
    case Collective::broadcast:
      return "broadcast";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_gather:
      return "all_gather";
    case Collective::gather:
      return "gather";
    case Collective::scatter:
      return "scatter";
    case Collective::all_to_all:
      return "all_to_all";
    case Collective::barrier:
      return "barrier";
  }
  return "unknown";
}

const char* to_string(Combine combine) noexcept {
  switch (combine) {
    case Combine::replace:
      return "replace";
    case Combine::reduce:
      return "reduce";
  }
  return "unknown";
}

Collective collective_from_string(const std::string& name) {
  std::string known;
  for (const Collective collective : kCollectives) {
    if (name == to_string(collective)) return collective;
    append(known, to_string(collective));
  }
  throw_usage("collective must be one of " + known + "; got \"" + name + "\"");
}

Combine combine_from_string(const std::string& name) {
  if (name == to_string(Combine::replace)) return Combine::replace;
  if (name == to_string(Combine::reduce)) return Combine::reduce;
  throw_usage("combine must be replace or reduce; got \"" + name + "\"");
}

}  // namespace kf
