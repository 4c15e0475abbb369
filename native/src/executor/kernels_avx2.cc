// The reduction loops for avx2; compiled with flags of its own, see CMakeLists.txt.
#if defined(__AVX2__)

#include "executor/kernel_loops.h"

namespace kf {

const Kernels* avx2_kernels() noexcept {
  static constexpr Kernels kKernels = kernels_named("avx2");
  const bool here = __builtin_cpu_supports("avx2") && machine_has_f16c();
  return here ? &kKernels : nullptr;
}

}  // namespace kf

#else

#include "executor/kernels.h"

namespace kf {

const Kernels* avx2_kernels() noexcept {
  return nullptr;
}

}  // namespace kf

#endif
