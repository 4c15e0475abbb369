// Reduction kernels: pure loops over memory, no I/O, no threads.
//
// Operand order is part of the contract: two ranks that combine the same two values must get
// the same bits, also for NaN and signed zeros, so the caller says which operand comes first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kf/types.h"

namespace kf {

// dst[i] = dst[i] (op) src[i], or src[i] (op) dst[i] when `src_first`. avg adds.
// Neither pointer needs to be aligned; they must not overlap. Integers wrap. NaN propagates
// through min and max whichever operand it stands in.
void combine(DType dtype, ReduceOp op, std::byte* dst, const std::byte* src, std::int64_t count,
             bool src_first);

// data[i] = data[i] / divisor; integers truncate towards zero. 16-bit floats divide in 32 bits.
void divide(DType dtype, std::byte* data, std::int64_t count, int divisor);

// 16-bit floats to 32-bit floats and back; `dtype` is f16 or bf16.
void widen(DType dtype, const std::byte* narrow, float* wide, std::int64_t count);
void narrow(DType dtype, const float* wide, std::byte* narrow, std::int64_t count);

}  // namespace kf
