// Conversions between 32-bit floats and the two 16-bit formats, in plain integer arithmetic so
// that every compiler gives the same bits. Rounding is to nearest, ties to even; NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace kf {

inline float bf16_to_float(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t float_to_bf16(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
  // a NaN must not be rounded up into an infinity: keep its sign and set the quiet bit
  const std::uint32_t result =
      (bits & 0x7FFFFFFFU) > 0x7F800000U ? (bits >> 16) | 0x0040U : rounded >> 16;
  return static_cast<std::uint16_t>(result);
}

inline float f16_to_float(std::uint16_t half) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7FFFU;
  // moves the exponent into place; the multiplication by 2^112 corrects the bias and normalises
  // subnormal numbers
  float value = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  const std::uint32_t special = (magnitude << 13) | 0x7F800000U;
  value = magnitude >= 0x7C00U ? std::bit_cast<float>(special) : value;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
}

inline std::uint16_t float_to_f16(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  // subnormal results: adding 0.5 lets the hardware round at the right bit
  const std::uint32_t small =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
  const std::uint32_t normal =
      (magnitude - 0x38000000U + 0x0FFFU + ((magnitude >> 13) & 1U)) >> 13;
  std::uint32_t result = magnitude < 0x38800000U ? small : normal;
  result = magnitude >= 0x477FF000U ? 0x7C00U : result;  // rounds to infinity
  result = magnitude > 0x7F800000U ? 0x7E00U : result;   // NaN
  return static_cast<std::uint16_t>(result | sign);
}

}  // namespace kf
