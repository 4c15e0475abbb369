// Element types, reduce operators and the typed piece of memory a collective works on.
//
// Terms: piece: a run of elements of one type that are reduced with one operator; an operation
//        works on a list of pieces, and the buffer of its schedule is their concatenation.
// Threads: values and pure functions; safe everywhere.
// Ownership: a Piece points at the caller's memory, which must outlive the operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kf {

enum class DType : std::uint8_t {
  f32,
  f64,
  f16,
  bf16,
  i8,
  u8,
  i16,
  i32,
  i64,
  boolean,
  c64,
  c128,
};

// avg divides the sum by the number of participants; integer averages truncate towards zero.
// For boolean, sum and max mean "or", prod and min mean "and"; avg is refused.
enum class ReduceOp : std::uint8_t { sum, prod, min, max, avg };

struct Piece {
  void* data = nullptr;
  std::int64_t count = 0;  // elements, >= 0
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
};

std::int64_t element_bytes(DType dtype) noexcept;
const char* to_string(DType dtype) noexcept;  // NumPy's name, e.g. "float32"
const char* to_string(ReduceOp op) noexcept;
DType dtype_from_string(const std::string& name);         // Throws Error{usage}
ReduceOp reduce_op_from_string(const std::string& name);  // Throws Error{usage}

// Throws Error{usage} naming both when `op` has no meaning for `dtype` (complex minimum and
// maximum, boolean average).
void require_reducible(DType dtype, ReduceOp op);

}  // namespace kf
