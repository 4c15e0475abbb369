#include "executor/combine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <vector>

#include "executor/half.h"
#include "kf/error.h"

namespace kf {

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class T>
std::vector<T> combined(DType dtype, ReduceOp op, std::vector<T> dst, std::vector<T> src,
                        bool src_first = false) {
  combine(dtype, op, reinterpret_cast<std::byte*>(dst.data()),
          reinterpret_cast<const std::byte*>(src.data()), static_cast<std::int64_t>(dst.size()),
          src_first);
  return dst;
}

}  // namespace

TEST(Combine, ReducesEveryNumericType) {
  EXPECT_EQ(combined<float>(DType::f32, ReduceOp::sum, {1, 2}, {10, 20}),
            (std::vector<float>{11, 22}));
  EXPECT_EQ(combined<double>(DType::f64, ReduceOp::prod, {3}, {4}), std::vector<double>{12});
  EXPECT_EQ(combined<std::int16_t>(DType::i16, ReduceOp::min, {-5, 7}, {3, -9}),
            (std::vector<std::int16_t>{-5, -9}));
  EXPECT_EQ(combined<std::uint8_t>(DType::u8, ReduceOp::max, {200}, {100}),
            std::vector<std::uint8_t>{200});
  EXPECT_EQ(combined<std::int64_t>(DType::i64, ReduceOp::avg, {5}, {6}),
            std::vector<std::int64_t>{11});
  using C = std::complex<float>;
  EXPECT_EQ(combined<C>(DType::c64, ReduceOp::prod, {C(0, 1)}, {C(0, 1)}),
            std::vector<C>{C(-1, 0)});
}

TEST(Combine, WrapsIntegersWithoutUndefinedBehaviour) {
  EXPECT_EQ(combined<std::int8_t>(DType::i8, ReduceOp::sum, {127}, {1}),
            std::vector<std::int8_t>{-128});
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(combined<std::int64_t>(DType::i64, ReduceOp::sum, {most}, {1}),
            std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::min()});
}

TEST(Combine, TreatsAnyNonZeroByteAsTrue) {
  EXPECT_EQ(combined<std::uint8_t>(DType::boolean, ReduceOp::sum, {0, 1, 7}, {0, 1, 0}),
            (std::vector<std::uint8_t>{0, 1, 1}));
  EXPECT_EQ(combined<std::uint8_t>(DType::boolean, ReduceOp::prod, {0, 1, 7}, {1, 1, 0}),
            (std::vector<std::uint8_t>{0, 1, 0}));
}

TEST(Combine, PropagatesNanInEitherOperandAndOrder) {
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    for (const bool src_first : {false, true}) {
      EXPECT_TRUE(std::isnan(combined<float>(DType::f32, op, {kNan}, {1}, src_first)[0]));
      EXPECT_TRUE(std::isnan(combined<float>(DType::f32, op, {1}, {kNan}, src_first)[0]));
      const std::uint16_t nan = float_to_f16(kNan);
      const std::uint16_t one = float_to_f16(1);
      EXPECT_TRUE(std::isnan(
          f16_to_float(combined<std::uint16_t>(DType::f16, op, {nan}, {one}, src_first)[0])));
      EXPECT_TRUE(std::isnan(
          f16_to_float(combined<std::uint16_t>(DType::f16, op, {one}, {nan}, src_first)[0])));
    }
  }
}

// Two ranks that exchange 0.0 and -0.0 must agree on the sign.
TEST(Combine, GivesTheSameBitsOnBothSidesOfAnExchange) {
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    const float lower = combined<float>(DType::f32, op, {0.0F}, {-0.0F}, false)[0];
    const float upper = combined<float>(DType::f32, op, {-0.0F}, {0.0F}, true)[0];
    EXPECT_EQ(std::signbit(lower), std::signbit(upper));
  }
}

// A NaN in the result has the same bits whatever NaNs came in, in whatever order.
TEST(Combine, KnowsOneNan) {
  const float negative = -kNan;
  const float infinity = std::numeric_limits<float>::infinity();
  float payload = 0;
  const std::uint32_t bits = 0xFFC12345U;
  std::memcpy(&payload, &bits, sizeof(bits));
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max}) {
    const float loss = op == ReduceOp::sum ? -infinity : kNan;
    const std::vector<float> all(37, infinity);
    for (const bool src_first : {false, true}) {
      for (const auto& [a, b] : {std::pair{negative, payload},
                                 {payload, negative},
                                 {infinity, loss},
                                 {1.0F, payload},
                                 {payload, 1.0F}}) {
        for (const float value : combined<float>(DType::f32, op, std::vector<float>(37, a),
                                                 std::vector<float>(37, b), src_first)) {
          std::uint32_t got = 0;
          std::memcpy(&got, &value, sizeof(got));
          ASSERT_EQ(got, 0x7FC00000U) << to_string(op) << " of " << a << " and " << b;
        }
      }
    }
  }
}

TEST(Combine, AcceptsMisalignedMemory) {
  std::vector<std::byte> memory(64);
  const double one = 1.5;
  std::memcpy(memory.data() + 1, &one, 8);
  std::memcpy(memory.data() + 19, &one, 8);
  combine(DType::f64, ReduceOp::sum, memory.data() + 1, memory.data() + 19, 1, false);
  double sum = 0;
  std::memcpy(&sum, memory.data() + 1, 8);
  EXPECT_EQ(sum, 3.0);
}

TEST(Divide, TruncatesIntegersTowardsZero) {
  std::vector<std::int32_t> values = {7, -7, 6};
  divide(DType::i32, reinterpret_cast<std::byte*>(values.data()), 3, 3);
  EXPECT_EQ(values, (std::vector<std::int32_t>{2, -2, 2}));
}

TEST(Half, RoundTripsEveryBitPattern) {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float wide = f16_to_float(half);
    const float brain = bf16_to_float(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(wide))));
    } else {
      ASSERT_EQ(float_to_f16(wide), half);
    }
    if (std::isnan(brain)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(brain))));
    } else {
      ASSERT_EQ(float_to_bf16(brain), half);
    }
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(float_to_f16(1.0F + 0x1p-11F), 0x3C00);  // halfway: down to even
  EXPECT_EQ(float_to_f16(1.0F + 0x1p-11F + 0x1p-20F), 0x3C01);
  EXPECT_EQ(float_to_f16(1.0F + 0x3p-11F), 0x3C02);  // halfway: up to even
  EXPECT_EQ(float_to_f16(65519.0F), 0x7BFF);
  EXPECT_EQ(float_to_f16(65520.0F), 0x7C00);  // infinity
  EXPECT_EQ(float_to_f16(0x1p-24F), 0x0001);  // smallest subnormal
  EXPECT_EQ(float_to_f16(0x1p-25F), 0x0000);
  EXPECT_EQ(float_to_bf16(1.0F + 0x1p-8F), 0x3F80);
  EXPECT_EQ(float_to_bf16(1.0F + 0x3p-8F), 0x3F82);
}

TEST(RequireReducible, NamesTypeAndOperator) {
  EXPECT_NO_THROW(require_reducible(DType::c64, ReduceOp::avg));
  try {
    require_reducible(DType::c128, ReduceOp::max);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_STREQ(error.what(), "op max has no meaning for dtype complex128");
  }
  EXPECT_THROW(require_reducible(DType::boolean, ReduceOp::avg), Error);
}

}  // namespace kf
