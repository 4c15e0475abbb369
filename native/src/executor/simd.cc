#include "kf/simd.h"

#include <atomic>

#include "executor/kernels.h"
#include "kf/error.h"

namespace kf {

namespace {

std::vector<const Kernels*> available() {
  std::vector<const Kernels*> found = {&portable_kernels()};
  for (const Kernels* kernels : {avx2_kernels(), avx512_kernels()}) {
    if (kernels != nullptr) found.push_back(kernels);
  }
  return found;
}

std::atomic<const Kernels*>& chosen() noexcept {
  static std::atomic<const Kernels*> kernels{available().back()};
  return kernels;
}

}  // namespace

const Kernels& active_kernels() noexcept {
  return *chosen().load(std::memory_order_relaxed);
}

std::vector<std::string> simd_levels() {
  std::vector<std::string> levels;
  for (const Kernels* kernels : available()) levels.emplace_back(kernels->level);
  return levels;
}

std::string simd_level() {
  return active_kernels().level;
}

void use_simd_level(const std::string& level) {
  std::string known;
  for (const Kernels* kernels : available()) {
    if (level == kernels->level) {
      chosen().store(kernels, std::memory_order_relaxed);
      return;
    }
    known += (known.empty() ? "" : ", ") + std::string(kernels->level);
  }
  throw Error(ErrorCode::usage, "the vector level must be one that this machine has (" + known +
                                    "), got \"" + level + "\"");
}

}  // namespace kf
