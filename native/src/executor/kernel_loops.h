// The reduction loops, compiled once for each vector level: included by kernels_<level>.cc
// only.
//
// Everything here has internal linkage, and nothing of the standard library is called: an
// inline function compiled for AVX-512 in one file may otherwise be the copy that the linker
// keeps for all files, and stop a machine without it.
//
// Bits. Every level must give the same, so the arithmetic is fixed: no contraction to fused
// multiply-add (a compiler flag), and a float result that is not a number becomes the one
// quiet NaN. Which of two NaNs an addition passes on would else depend on the order in which a
// compiler puts its operands, and the sign of inf - inf on the machine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/half.h"
#include "executor/kernels.h"

#if defined(__F16C__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace kf {
namespace {

// Storage types of the 16-bit floats: loaded as float, stored rounded.
struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};
struct Boolean {
  std::uint8_t bits;
};
template <class F>
struct Complex {
  F re;
  F im;
};

template <class T>
struct Of {  // of type T: what it is computed in
  using Value = T;
  static constexpr bool real = false;
};
template <>
struct Of<float> {
  using Value = float;
  static constexpr bool real = true;
};
template <>
struct Of<double> {
  using Value = double;
  static constexpr bool real = true;
};
template <>
struct Of<Boolean> {
  using Value = std::uint8_t;
};
// Signed overflow is undefined in C++, so integers are added and multiplied without a sign; the
// low bits are the wrapped result.
template <class T>
struct Unsigned;
template <>
struct Unsigned<std::int8_t> {
  using Type = std::uint32_t;
};
template <>
struct Unsigned<std::uint8_t> {
  using Type = std::uint32_t;
};
template <>
struct Unsigned<std::int16_t> {
  using Type = std::uint32_t;
};
template <>
struct Unsigned<std::int32_t> {
  using Type = std::uint32_t;
};
template <>
struct Unsigned<std::int64_t> {
  using Type = std::uint64_t;
};

// Elements are loaded and stored bytewise because user memory and receive buffers need not be
// aligned; compilers turn this into (vector) moves.
template <class T>
T load(const std::byte* from) noexcept {
  T value;
  __builtin_memcpy(&value, from, sizeof(T));
  return value;
}
template <class T>
void store(std::byte* to, T value) noexcept {
  __builtin_memcpy(to, &value, sizeof(T));
}

template <class F>
F one_nan(F value) noexcept {
  if constexpr (sizeof(F) == sizeof(float)) {
    return value == value ? value : __builtin_nanf("");
  } else {
    return value == value ? value : __builtin_nan("");
  }
}

struct Sum {
  template <class T>
  static T apply(T a, T b) noexcept {
    if constexpr (Of<T>::real) {
      return one_nan(a + b);
    } else {
      using U = typename Unsigned<T>::Type;
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    }
  }
  static std::uint8_t logical(bool a, bool b) noexcept { return a | b; }
};

struct Prod {
  template <class T>
  static T apply(T a, T b) noexcept {
    if constexpr (Of<T>::real) {
      return one_nan(a * b);
    } else {
      using U = typename Unsigned<T>::Type;
      return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    }
  }
  static std::uint8_t logical(bool a, bool b) noexcept { return a & b; }
};

struct Min {
  template <class T>
  static T apply(T a, T b) noexcept {
    if constexpr (Of<T>::real) {
      // a NaN in b makes the comparison false and is taken
      return one_nan((a < b || a != a) ? a : b);
    } else {
      return a < b ? a : b;
    }
  }
  static std::uint8_t logical(bool a, bool b) noexcept { return a & b; }
};

struct Max {
  template <class T>
  static T apply(T a, T b) noexcept {
    if constexpr (Of<T>::real) {
      return one_nan((a > b || a != a) ? a : b);
    } else {
      return a > b ? a : b;
    }
  }
  static std::uint8_t logical(bool a, bool b) noexcept { return a | b; }
};

template <class T, class Op>
void loop(std::byte* __restrict dst, const std::byte* __restrict src, std::int64_t count,
          bool src_first) noexcept {
  constexpr auto size = static_cast<std::int64_t>(sizeof(T));
  if (src_first) {
    for (std::int64_t i = 0; i < count; ++i) {
      store<T>(dst + i * size, Op::apply(load<T>(src + i * size), load<T>(dst + i * size)));
    }
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      store<T>(dst + i * size, Op::apply(load<T>(dst + i * size), load<T>(src + i * size)));
    }
  }
}

template <class Op>
void loop_booleans(std::byte* __restrict dst, const std::byte* __restrict src,
                   std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    const bool a = load<std::uint8_t>(dst + i) != 0;
    const bool b = load<std::uint8_t>(src + i) != 0;
    store<std::uint8_t>(dst + i, Op::logical(a, b));
  }
}

// (a + bi)(c + di), as C defines it: where both parts come out as NaN the operands' infinities
// decide, which the compiler's own library does for _Complex.
template <class F>
struct Wide;
template <>
struct Wide<float> {
  __extension__ typedef _Complex float Type;
};
template <>
struct Wide<double> {
  __extension__ typedef _Complex double Type;
};

template <class F>
void multiply_complex(std::byte* __restrict dst, const std::byte* __restrict src,
                      std::int64_t count, bool src_first) noexcept {
  using C = typename Wide<F>::Type;
  constexpr auto size = static_cast<std::int64_t>(2 * sizeof(F));
  for (std::int64_t i = 0; i < count; ++i) {
    C mine;
    C theirs;
    __builtin_memcpy(&mine, dst + i * size, sizeof(C));
    __builtin_memcpy(&theirs, src + i * size, sizeof(C));
    const C product = src_first ? theirs * mine : mine * theirs;
    store(dst + i * size, Complex<F>{one_nan(__real__ product), one_nan(__imag__ product)});
  }
}

constexpr std::int64_t kBlock = 256;  // 16-bit floats widened at a time

void widen_here(DType dtype, const std::byte* narrow, float* wide,
                std::int64_t count) noexcept {
  std::int64_t i = 0;
  if (dtype == DType::bf16) {
    for (; i < count; ++i) wide[i] = bf16_to_float(load<std::uint16_t>(narrow + 2 * i));
    return;
  }
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    __m128i half;
    __builtin_memcpy(&half, narrow + 2 * i, sizeof(half));
    _mm256_storeu_ps(wide + i, _mm256_cvtph_ps(half));
  }
#endif
  for (; i < count; ++i) wide[i] = f16_to_float(load<std::uint16_t>(narrow + 2 * i));
}

void narrow_here(DType dtype, const float* wide, std::byte* narrow,
                 std::int64_t count) noexcept {
  std::int64_t i = 0;
  if (dtype == DType::bf16) {
    for (; i < count; ++i) store(narrow + 2 * i, float_to_bf16(wide[i]));
    return;
  }
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(wide + i), _MM_FROUND_TO_NEAREST_INT);
    __builtin_memcpy(narrow + 2 * i, &half, sizeof(half));
  }
#endif
  for (; i < count; ++i) store(narrow + 2 * i, float_to_f16(wide[i]));
}

template <class Op>
void loop_halves(DType dtype, std::byte* dst, const std::byte* src, std::int64_t count,
                 bool src_first) noexcept {
  float mine[kBlock];
  float theirs[kBlock];
  for (std::int64_t done = 0; done < count; done += kBlock) {
    const std::int64_t part = count - done < kBlock ? count - done : kBlock;
    widen_here(dtype, dst + 2 * done, mine, part);
    widen_here(dtype, src + 2 * done, theirs, part);
    loop<float, Op>(reinterpret_cast<std::byte*>(mine),
                    reinterpret_cast<const std::byte*>(theirs), part, src_first);
    narrow_here(dtype, mine, dst + 2 * done, part);
  }
}

template <class Op>
void combine_with(DType dtype, std::byte* dst, const std::byte* src, std::int64_t count,
                  bool src_first) noexcept {
  switch (dtype) {
    case DType::f32:
      return loop<float, Op>(dst, src, count, src_first);
    case DType::f64:
      return loop<double, Op>(dst, src, count, src_first);
    case DType::f16:
    case DType::bf16:
      return loop_halves<Op>(dtype, dst, src, count, src_first);
    case DType::i8:
      return loop<std::int8_t, Op>(dst, src, count, src_first);
    case DType::u8:
      return loop<std::uint8_t, Op>(dst, src, count, src_first);
    case DType::i16:
      return loop<std::int16_t, Op>(dst, src, count, src_first);
    case DType::i32:
      return loop<std::int32_t, Op>(dst, src, count, src_first);
    case DType::i64:
      return loop<std::int64_t, Op>(dst, src, count, src_first);
    case DType::boolean:
      return loop_booleans<Op>(dst, src, count);
    case DType::c64:  // real and imaginary parts add on their own
      return loop<float, Op>(dst, src, 2 * count, src_first);
    case DType::c128:
      return loop<double, Op>(dst, src, 2 * count, src_first);
  }
}

void combine_here(DType dtype, ReduceOp op, std::byte* dst, const std::byte* src,
                  std::int64_t count, bool src_first) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return combine_with<Sum>(dtype, dst, src, count, src_first);
    case ReduceOp::prod:
      if (dtype == DType::c64) return multiply_complex<float>(dst, src, count, src_first);
      if (dtype == DType::c128) return multiply_complex<double>(dst, src, count, src_first);
      return combine_with<Prod>(dtype, dst, src, count, src_first);
    case ReduceOp::min:
      return combine_with<Min>(dtype, dst, src, count, src_first);
    case ReduceOp::max:
      return combine_with<Max>(dtype, dst, src, count, src_first);
  }
}

template <class T>
void divide_as(std::byte* data, std::int64_t count, T divisor) noexcept {
  constexpr auto size = static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto quotient = load<T>(data + i * size) / divisor;
    if constexpr (Of<T>::real) {
      store<T>(data + i * size, one_nan(quotient));
    } else {
      store<T>(data + i * size, static_cast<T>(quotient));
    }
  }
}

// A divisor that the type cannot hold is greater than all its values.
template <class T>
void divide_integers(std::byte* data, std::int64_t count, int divisor) noexcept {
  if (static_cast<T>(divisor) == divisor) {
    return divide_as<T>(data, count, static_cast<T>(divisor));
  }
  constexpr auto size = static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t value = load<T>(data + i * size);
    store<T>(data + i * size, static_cast<T>(value / divisor));
  }
}

void divide_halves(DType dtype, std::byte* data, std::int64_t count, float divisor) noexcept {
  float wide[kBlock];
  for (std::int64_t done = 0; done < count; done += kBlock) {
    const std::int64_t part = count - done < kBlock ? count - done : kBlock;
    widen_here(dtype, data + 2 * done, wide, part);
    divide_as<float>(reinterpret_cast<std::byte*>(wide), part, divisor);
    narrow_here(dtype, wide, data + 2 * done, part);
  }
}

void divide_here(DType dtype, std::byte* data, std::int64_t count, int divisor) {
  switch (dtype) {
    case DType::f32:
      return divide_as<float>(data, count, static_cast<float>(divisor));
    case DType::f64:
      return divide_as<double>(data, count, divisor);
    case DType::f16:
    case DType::bf16:
      return divide_halves(dtype, data, count, static_cast<float>(divisor));
    case DType::i8:
      return divide_integers<std::int8_t>(data, count, divisor);
    case DType::u8:
      return divide_integers<std::uint8_t>(data, count, divisor);
    case DType::i16:
      return divide_integers<std::int16_t>(data, count, divisor);
    case DType::i32:
      return divide_as<std::int32_t>(data, count, divisor);
    case DType::i64:
      return divide_as<std::int64_t>(data, count, divisor);
    case DType::boolean:
      return;
    case DType::c64:
      return divide_as<float>(data, 2 * count, static_cast<float>(divisor));
    case DType::c128:
      return divide_as<double>(data, 2 * count, divisor);
  }
}

// Sixteen independent sums: additions keep their order, and one sum would wait for itself.
template <class T>
double squares_here(const T* values, std::int64_t count) {
  constexpr std::int64_t kLanes = 16;
  double lanes[kLanes] = {};
  const std::int64_t whole = count / kLanes * kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (std::int64_t i = whole; i < count; ++i) {
    const auto value = static_cast<double>(values[i]);
    lanes[i - whole] += value * value;
  }
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

#if defined(__F16C__)
// Compilers do not know this one by name.
bool machine_has_f16c() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

constexpr Kernels kernels_named(const char* level) noexcept {
  return {level,       combine_here,        divide_here,         widen_here,
          narrow_here, squares_here<float>, squares_here<double>};
}

}  // namespace
}  // namespace kf
