// Which vector instructions the reductions use.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "kf/simd.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kf::bindings {

void bind_simd(nb::module_& m) {
  m.def("simd_levels", &simd_levels);
  m.def("simd_level", &simd_level);
  m.def("use_simd_level", &use_simd_level, "level"_a);
}

}  // namespace kf::bindings
