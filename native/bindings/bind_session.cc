#include "bindings.h"

namespace kf::bindings {

void bind_session(nanobind::module_&) {}

}  // namespace kf::bindings
