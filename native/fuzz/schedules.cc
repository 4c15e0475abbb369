// Texts of schedules: each is refused as a usage error, or builds a schedule that is proved.
#include <string>

#include "executor/plan.h"
#include "fuzz.h"
#include "kf/cost.h"
#include "kf/error.h"
#include "kf/generators.h"
#include "kf/validate.h"

namespace kf::fuzz {

void schedules(Bytes bytes) {
  Input input(bytes);
  const auto collective = static_cast<Collective>(input.byte() % 9);
  const int world_size = 1 + input.byte() % 9;
  const int root = input.byte() % world_size;
  const std::string_view text = input.rest();
  Schedule schedule;
  try {
    schedule = build_schedule(text, collective, world_size, root);
  } catch (const Error& error) {
    promise(error.code() == ErrorCode::usage, error.what());
    return;
  }
  try {
    validate(schedule);
    promise(build_schedule(schedule.name, collective, world_size, root) == schedule,
            "a schedule's name does not denote it");
    const Schedule again = build_schedule(custom_spec(schedule), collective, world_size, root);
    validate(again);
    cost(schedule, 1 << 20, {1e-5, 1e9, 1e10}, 4);
    if (schedule.chunk_count > 4096) return;
    for (int rank = 0; rank < world_size; ++rank) make_plan(schedule, rank);
  } catch (const Error& error) {
    broken(error.what());
  }
}

}  // namespace kf::fuzz
