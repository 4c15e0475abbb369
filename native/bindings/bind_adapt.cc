#include "bindings.h"

namespace kf::bindings {

void bind_adapt(nanobind::module_&) {}

}  // namespace kf::bindings
