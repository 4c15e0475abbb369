// The reduction loops for every machine of this kind.
#include "executor/kernel_loops.h"

namespace kf {

const Kernels& portable_kernels() noexcept {
  static constexpr Kernels kKernels = kernels_named("portable");
  return kKernels;
}

}  // namespace kf
