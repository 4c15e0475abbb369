// Every vector level gives the same bits as the portable loops.
#include "kf/simd.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "executor/combine.h"
#include "executor/half.h"
#include "executor/kernels.h"
#include "kf/error.h"

namespace kf {

namespace {

constexpr std::int64_t kCount = 531;  // whole vectors of every width, and a rest

using Memory = std::vector<std::byte>;

std::vector<const Kernels*> levels() {
  std::vector<const Kernels*> found;
  for (const Kernels* kernels : {avx2_kernels(), avx512_kernels()}) {
    if (kernels != nullptr) found.push_back(kernels);
  }
  return found;
}

// Random bits with every special value of 16, 32 and 64-bit floats strewn in, one byte off any
// alignment.
Memory any_bits(unsigned seed) {
  std::mt19937_64 random(seed);
  Memory memory(16 * kCount + 1);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
  const std::uint64_t special[] = {
      0x7FC00000, 0xFFC00001, 0x7F800000, 0xFF800000, 0x7F800001,         0x80000000,
      0x00000001, 0x7C007E00, 0xFC01FFC0, 0x7F807FC0, 0x7FF0000000000000, 0xFFF8000000000001};
  for (std::size_t at = 1; at + 64 < memory.size(); at += 24) {
    const std::uint64_t value = special[random() % 12];
    std::memcpy(memory.data() + at, &value, at % 48 == 1 ? 4 : 8);
  }
  return memory;
}

std::vector<DType> all_types() {
  std::vector<DType> types;
  for (int t = 0; t <= static_cast<int>(DType::c128); ++t) types.push_back(DType(t));
  return types;
}

bool reducible(DType dtype, ReduceOp op) {
  try {
    require_reducible(dtype, op);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

TEST(Simd, CombinesToTheSameBitsOnEveryLevel) {
  for (const Kernels* level : levels()) {
    for (const DType dtype : all_types()) {
      for (int o = 0; o <= static_cast<int>(ReduceOp::avg); ++o) {
        const auto op = ReduceOp(o);
        if (!reducible(dtype, op)) continue;
        for (unsigned seed = 0; seed < 6; ++seed) {
          const Memory src = any_bits(2 * seed);
          Memory slow = any_bits(2 * seed + 1);
          Memory fast = slow;
          const bool src_first = seed % 2 == 0;
          portable_kernels().combine(dtype, op, slow.data() + 1, src.data() + 1, kCount,
                                     src_first);
          level->combine(dtype, op, fast.data() + 1, src.data() + 1, kCount, src_first);
          ASSERT_EQ(slow, fast) << level->level << " " << to_string(dtype) << " "
                                << to_string(op) << " seed " << seed;
        }
      }
    }
  }
}

TEST(Simd, DividesToTheSameBitsOnEveryLevel) {
  for (const Kernels* level : levels()) {
    for (const DType dtype : all_types()) {
      for (const int divisor : {1, 3, 256, 70'000}) {
        Memory slow = any_bits(7);
        Memory fast = slow;
        portable_kernels().divide(dtype, slow.data() + 1, kCount, divisor);
        level->divide(dtype, fast.data() + 1, kCount, divisor);
        ASSERT_EQ(slow, fast) << level->level << " " << to_string(dtype) << " / " << divisor;
      }
    }
  }
}

TEST(Simd, WidensEvery16BitPatternAlike) {
  constexpr std::int64_t kAll = 1 << 16;
  std::vector<std::uint16_t> patterns(kAll);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = std::uint16_t(i);
  const auto* from = reinterpret_cast<const std::byte*>(patterns.data());
  for (const Kernels* level : levels()) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      std::vector<float> slow(kAll);
      std::vector<float> fast(kAll);
      portable_kernels().widen(dtype, from, slow.data(), kAll);
      level->widen(dtype, from, fast.data(), kAll);
      ASSERT_EQ(std::memcmp(slow.data(), fast.data(), 4 * kAll), 0) << level->level;
    }
  }
}

TEST(Simd, NarrowsAlikeAroundEveryRoundingBoundary) {
  std::vector<float> wide;
  for (std::uint32_t top = 0; top <= 0xFFFF; ++top) {
    for (const std::uint32_t low : {0x0000U, 0x0001U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU,
                                    0x1000U, 0x0FFFU, 0x1001U, 0x3000U}) {
      const std::uint32_t bits = (top << 16) | low;
      float value = 0;
      std::memcpy(&value, &bits, sizeof(bits));
      wide.push_back(value);
    }
  }
  const auto count = static_cast<std::int64_t>(wide.size());
  for (const Kernels* level : levels()) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      Memory slow(2 * wide.size());
      Memory fast(2 * wide.size());
      portable_kernels().narrow(dtype, wide.data(), slow.data(), count);
      level->narrow(dtype, wide.data(), fast.data(), count);
      ASSERT_EQ(slow, fast) << level->level << " " << to_string(dtype);
    }
  }
}

TEST(Simd, IsChosenByNameAndRefusesWhatIsNotThere) {
  const std::string before = simd_level();
  EXPECT_EQ(before, simd_levels().back());
  use_simd_level("portable");
  EXPECT_EQ(simd_level(), "portable");
  EXPECT_EQ(&active_kernels(), &portable_kernels());
  use_simd_level(before);
  try {
    use_simd_level("mmx");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_NE(std::string(error.what()).find("(portable"), std::string::npos) << error.what();
  }
  EXPECT_EQ(simd_level(), before);
}

}  // namespace kf
