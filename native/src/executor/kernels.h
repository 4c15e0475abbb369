// The loops of one vector level, and which level is in use.
//
// Threads: values that never change, but for active_kernels(), which any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kf/types.h"

namespace kf {

// See executor/combine.h for what each does. combine() gets only operators that have a meaning
// for the type, divide() no booleans.
struct Kernels {
  const char* level;
  void (*combine)(DType dtype, ReduceOp op, std::byte* dst, const std::byte* src,
                  std::int64_t count, bool src_first);
  void (*divide)(DType dtype, std::byte* data, std::int64_t count, int divisor);
  void (*widen)(DType dtype, const std::byte* narrow, float* wide, std::int64_t count);
  void (*narrow)(DType dtype, const float* wide, std::byte* narrow, std::int64_t count);
  double (*squares32)(const float* values,
                      std::int64_t count);  // sum of squares, see kf/norm.h
  double (*squares64)(const double* values, std::int64_t count);
};

const Kernels& portable_kernels() noexcept;
// Null where this machine, or the compiler the library was built with, does not have them.
const Kernels* avx2_kernels() noexcept;
const Kernels* avx512_kernels() noexcept;

const Kernels& active_kernels() noexcept;

}  // namespace kf
