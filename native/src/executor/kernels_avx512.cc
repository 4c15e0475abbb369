// The reduction loops for avx512; compiled with flags of its own, see CMakeLists.txt.
#if defined(__AVX512BW__)

#include "executor/kernel_loops.h"

namespace kf {

const Kernels* avx512_kernels() noexcept {
  static constexpr Kernels kKernels = kernels_named("avx512");
  const bool here = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                    machine_has_f16c();
  return here ? &kKernels : nullptr;
}

}  // namespace kf

#else

#include "executor/kernels.h"

namespace kf {

const Kernels* avx512_kernels() noexcept {
  return nullptr;
}

}  // namespace kf

#endif
