// Conversions between 32-bit floats and the two 16-bit formats, in plain integer arithmetic so
// that every compiler gives the same bits. Rounding is to nearest, ties to even. NaN stays NaN:
// float16 keeps its sign and leading bits and becomes quiet, as x86 processors do it.
//
// Internal linkage and no library functions: see executor/kernel_loops.h.
#pragma once

#include <cstdint>

namespace kf {

static inline float bf16_to_float(std::uint16_t bits) noexcept {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
}

static inline std::uint16_t float_to_bf16(float value) noexcept {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
  // a NaN must not be rounded up into an infinity: keep its sign and set the quiet bit
  const std::uint32_t result =
      (bits & 0x7FFFFFFFU) > 0x7F800000U ? (bits >> 16) | 0x0040U : rounded >> 16;
  return static_cast<std::uint16_t>(result);
}

static inline float f16_to_float(std::uint16_t half) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7FFFU;
  // moves the exponent into place; the multiplication by 2^112 corrects the bias and normalises
  // subnormal numbers
  float value = __builtin_bit_cast(float, magnitude << 13) * 0x1p112F;
  const std::uint32_t quiet = magnitude > 0x7C00U ? 0x00400000U : 0U;
  const std::uint32_t special = (magnitude << 13) | 0x7F800000U | quiet;
  value = magnitude >= 0x7C00U ? __builtin_bit_cast(float, special) : value;
  return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, value) | sign);
}

static inline std::uint16_t float_to_f16(float value) noexcept {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  // subnormal results: adding 0.5 lets the hardware round at the right bit
  const std::uint32_t small =
      __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, magnitude) + 0.5F) -
      0x3F000000U;
  const std::uint32_t normal =
      (magnitude - 0x38000000U + 0x0FFFU + ((magnitude >> 13) & 1U)) >> 13;
  std::uint32_t result = magnitude < 0x38800000U ? small : normal;
  result = magnitude >= 0x477FF000U ? 0x7C00U : result;  // rounds to infinity
  const std::uint32_t nan = 0x7E00U | ((magnitude >> 13) & 0x03FFU);
  result = magnitude > 0x7F800000U ? nan : result;
  return static_cast<std::uint16_t>(result | sign);
}

}  // namespace kf
