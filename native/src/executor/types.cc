#include "kf/types.h"

#include <array>

#include "kf/error.h"

namespace kf {

namespace {

struct DTypeFact {
  const char* name;
  std::int64_t bytes;
};

// Indexed by DType, in the order of the enumeration.
constexpr std::array<DTypeFact, 12> kDTypes = {{
    {"float32", 4},
    {"float64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"int8", 1},
    {"uint8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"bool", 1},
    {"complex64", 8},
    {"complex128", 16},
}};

constexpr std::array<const char*, 5> kOps = {"sum", "prod", "min", "max", "avg"};

}  // namespace

std::int64_t element_bytes(DType dtype) noexcept {
  return kDTypes[static_cast<std::size_t>(dtype)].bytes;
}

const char* to_string(DType dtype) noexcept {
  return kDTypes[static_cast<std::size_t>(dtype)].name;
}

const char* to_string(ReduceOp op) noexcept {
  return kOps[static_cast<std::size_t>(op)];
}

DType dtype_from_string(const std::string& name) {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (name == kDTypes[i].name) return static_cast<DType>(i);
  }
  std::string known;
  for (const DTypeFact& fact : kDTypes)
    known += std::string(known.empty() ? "" : ", ") + fact.name;
  throw Error(ErrorCode::usage, "dtype must be one of " + known + ", got " + name);
}

ReduceOp reduce_op_from_string(const std::string& name) {
  for (std::size_t i = 0; i < kOps.size(); ++i) {
    if (name == kOps[i]) return static_cast<ReduceOp>(i);
  }
  throw Error(ErrorCode::usage, "op must be one of sum, prod, min, max, avg, got " + name);
}

void require_reducible(DType dtype, ReduceOp op) {
  const bool complex = dtype == DType::c64 || dtype == DType::c128;
  const bool ordering = op == ReduceOp::min || op == ReduceOp::max;
  if ((complex && ordering) || (dtype == DType::boolean && op == ReduceOp::avg)) {
    throw Error(ErrorCode::usage, std::string("op ") + to_string(op) +
                                      " has no meaning for dtype " + to_string(dtype));
  }
}

}  // namespace kf
