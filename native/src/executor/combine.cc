#include "executor/combine.h"

#include <complex>
#include <cstring>
#include <type_traits>

#include "executor/half.h"
#include "kf/error.h"

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

// Elements are loaded and stored through memcpy because user memory and receive buffers need
// not be aligned; compilers turn this into (vector) moves.
template <class T>
auto load(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof(T));
  if constexpr (std::is_same_v<T, Float16>) {
    return f16_to_float(value.bits);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return bf16_to_float(value.bits);
  } else if constexpr (std::is_same_v<T, Boolean>) {
    return value.bits != 0;
  } else {
    return value;
  }
}

template <class T, class V>
void store(std::byte* to, V value) noexcept {
  if constexpr (std::is_same_v<T, Float16>) {
    const Float16 narrow{float_to_f16(value)};
    std::memcpy(to, &narrow, sizeof(narrow));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    const BFloat16 narrow{float_to_bf16(value)};
    std::memcpy(to, &narrow, sizeof(narrow));
  } else if constexpr (std::is_same_v<T, Boolean>) {
    const Boolean narrow{static_cast<std::uint8_t>(value ? 1 : 0)};
    std::memcpy(to, &narrow, sizeof(narrow));
  } else {
    const T exact = static_cast<T>(value);
    std::memcpy(to, &exact, sizeof(exact));
  }
}

// Signed overflow is undefined in C++, so integers are added and multiplied as unsigned 64-bit
// numbers; the low bits are the wrapped result.
struct Sum {
  template <class T>
  static T apply(T a, T b) noexcept {
    if constexpr (std::is_same_v<T, bool>) {
      return a || b;
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    } else {
      return a + b;
    }
  }
};

struct Prod {
  template <class T>
  static T apply(T a, T b) noexcept {
    if constexpr (std::is_same_v<T, bool>) {
      return a && b;
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    } else {
      return a * b;
    }
  }
};

struct Min {
  template <class T>
  static T apply(T a, T b) noexcept {
    if constexpr (std::is_floating_point_v<T>) {
      return (a < b || a != a) ? a
                               : b;  // a NaN in b makes the comparison false and is returned
    } else {
      return a < b ? a : b;
    }
  }
};

struct Max {
  template <class T>
  static T apply(T a, T b) noexcept {
    if constexpr (std::is_floating_point_v<T>) {
      return (a > b || a != a) ? a : b;
    } else {
      return a > b ? a : b;
    }
  }
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

template <class T>
void combine_as(ReduceOp op, std::byte* dst, const std::byte* src, std::int64_t count,
                bool src_first) {
  constexpr bool ordered =
      !std::is_same_v<T, std::complex<float>> && !std::is_same_v<T, std::complex<double>>;
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return loop<T, Sum>(dst, src, count, src_first);
    case ReduceOp::prod:
      return loop<T, Prod>(dst, src, count, src_first);
    case ReduceOp::min:
      if constexpr (ordered) return loop<T, Min>(dst, src, count, src_first);
      break;
    case ReduceOp::max:
      if constexpr (ordered) return loop<T, Max>(dst, src, count, src_first);
      break;
  }
  throw Error(ErrorCode::internal, "complex numbers have no order");
}

template <class T>
void divide_as(std::byte* data, std::int64_t count, int divisor) noexcept {
  constexpr auto size = static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = load<T>(data + i * size);
    using V = std::remove_cv_t<decltype(value)>;
    if constexpr (std::is_integral_v<V>) {
      store<T>(data + i * size, static_cast<V>(value / static_cast<std::int64_t>(divisor)));
    } else {
      store<T>(data + i * size, value / static_cast<V>(static_cast<float>(divisor)));
    }
  }
}

// Calls fn with a value of the storage type of `dtype`.
template <class Fn>
void with_type(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::f32:
      return fn(float{});
    case DType::f64:
      return fn(double{});
    case DType::f16:
      return fn(Float16{});
    case DType::bf16:
      return fn(BFloat16{});
    case DType::i8:
      return fn(std::int8_t{});
    case DType::u8:
      return fn(std::uint8_t{});
    case DType::i16:
      return fn(std::int16_t{});
    case DType::i32:
      return fn(std::int32_t{});
    case DType::i64:
      return fn(std::int64_t{});
    case DType::boolean:
      return fn(Boolean{});
    case DType::c64:
      return fn(std::complex<float>{});
    case DType::c128:
      return fn(std::complex<double>{});
  }
}

}  // namespace

void combine(DType dtype, ReduceOp op, std::byte* dst, const std::byte* src, std::int64_t count,
             bool src_first) {
  with_type(dtype, [&]<class T>(T) { combine_as<T>(op, dst, src, count, src_first); });
}

void divide(DType dtype, std::byte* data, std::int64_t count, int divisor) {
  if (dtype == DType::boolean) throw Error(ErrorCode::internal, "booleans cannot be averaged");
  with_type(dtype, [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, Boolean>) divide_as<T>(data, count, divisor);
  });
}

void widen(DType dtype, const std::byte* narrow, float* wide, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    wide[i] =
        dtype == DType::f16 ? load<Float16>(narrow + 2 * i) : load<BFloat16>(narrow + 2 * i);
  }
}

void narrow(DType dtype, const float* wide, std::byte* narrow, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (dtype == DType::f16) {
      store<Float16>(narrow + 2 * i, wide[i]);
    } else {
      store<BFloat16>(narrow + 2 * i, wide[i]);
    }
  }
}

}  // namespace kf
