#include "bindings.h"

namespace kf::bindings {

void bind_replay(nanobind::module_&) {}

}  // namespace kf::bindings
