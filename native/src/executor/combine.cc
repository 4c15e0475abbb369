#include "executor/combine.h"

#include "executor/kernels.h"
#include "kf/error.h"

namespace kf {

void combine(DType dtype, ReduceOp op, std::byte* dst, const std::byte* src, std::int64_t count,
             bool src_first) {
  const bool complex = dtype == DType::c64 || dtype == DType::c128;
  if (complex && (op == ReduceOp::min || op == ReduceOp::max)) {
    throw Error(ErrorCode::internal, "complex numbers have no order");
  }
  active_kernels().combine(dtype, op, dst, src, count, src_first);
}

void divide(DType dtype, std::byte* data, std::int64_t count, int divisor) {
  if (dtype == DType::boolean) throw Error(ErrorCode::internal, "booleans cannot be averaged");
  active_kernels().divide(dtype, data, count, divisor);
}

void widen(DType dtype, const std::byte* narrow, float* wide, std::int64_t count) {
  active_kernels().widen(dtype, narrow, wide, count);
}

void narrow(DType dtype, const float* wide, std::byte* narrow, std::int64_t count) {
  active_kernels().narrow(dtype, wide, narrow, count);
}

}  // namespace kf
