#include "bindings.h"

namespace kf::bindings {

void bind_schedule(nanobind::module_&) {}

}  // namespace kf::bindings
