// Replays the inputs that fuzzing has found, and cuts of them; see native/fuzz/fuzz.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <vector>

#include "../fuzz/fuzz.h"

namespace kf::fuzz {

void broken(const char* what) {
  throw std::logic_error(what);
}

namespace {

std::vector<std::filesystem::path> inputs_of(std::string_view target) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(KF_CORPUS) / target)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

class Corpus : public ::testing::TestWithParam<Target> {};

}  // namespace

TEST_P(Corpus, KeepsEveryPromise) {
  const auto paths = inputs_of(GetParam().name);
  ASSERT_GE(paths.size(), 3U);
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> text((std::istreambuf_iterator<char>(file)),
                                 std::istreambuf_iterator<char>());
    const std::vector<std::uint8_t> bytes(text.begin(), text.end());
    for (const std::size_t length : {bytes.size(), bytes.size() / 2}) {
      EXPECT_NO_THROW(GetParam().run({bytes.data(), length})) << path;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Corpus, ::testing::ValuesIn(kTargets),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace kf::fuzz
