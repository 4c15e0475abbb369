// libFuzzer's entry to the one target this program is built for (KF_FUZZ_TARGET).
#include <cstdio>
#include <cstdlib>

#include "fuzz.h"

namespace kf::fuzz {

void broken(const char* what) {
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

}  // namespace kf::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kf::fuzz::KF_FUZZ_TARGET({data, size});
  return 0;
}
