// A rank with operations under way, to which a fuzzer plays the peer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "executor/executor.h"
#include "fuzz.h"
#include "kf/generators.h"

namespace kf::fuzz {

inline constexpr std::uint64_t kFingerprint = 0x1234567890ABCDEFULL;

// Rank 0 of two ranks, in an all-reduce of floats and in one of complex numbers.
class Victim {
 public:
  Victim(Transport& transport, std::uint8_t which) : executor_(transport, 0, 2) {
    static const char* const specs[] = {"ring", "recursive_doubling", "binary_tree", "star"};
    executor_.on_request = [](int, const Frame&, std::string_view) {};
    floats_.resize(which % 2 == 0 ? 50 : 20'000);
    complex_.resize(40);
    start(specs[which / 2 % 4], {{floats_.data(), static_cast<std::int64_t>(floats_.size()),
                                  DType::f32, ReduceOp::sum}});
    start(specs[which / 8 % 4], {{complex_.data(), 20, DType::c128, ReduceOp::sum}});
  }
  ~Victim() { executor_.bury(Clock::now()); }

  Executor& executor() { return executor_; }

 private:
  void start(const std::string& spec, std::vector<Piece> pieces) {
    OperationSpec operation;
    operation.fingerprint = kFingerprint;
    operation.describe = [] { return std::string("all_reduce"); };
    operation.plan = make_plan(build_schedule(spec, Collective::all_reduce, 2), 0);
    operation.pieces = std::move(pieces);
    operation.eager_bytes = 4096;
    operation.cell_bytes = 1024;
    executor_.start(std::move(operation));
  }

  std::vector<float> floats_;
  std::vector<double> complex_;
  Executor executor_;
};

// A header of which each field is either plausible or anything.
inline Frame frame_from(Input& input) {
  Frame frame;
  const std::uint8_t plausible = input.byte();
  frame.kind = static_cast<FrameKind>((plausible & 1) != 0 ? 1 : input.byte() % 6);
  frame.code = input.byte();
  frame.transfer =
      static_cast<std::uint32_t>((plausible & 2) != 0 ? input.byte() % 8 : input.number(4));
  frame.cell =
      static_cast<std::uint32_t>((plausible & 4) != 0 ? input.byte() % 80 : input.number(4));
  frame.key.scope = (plausible & 8) != 0 ? 0 : input.number(8);
  frame.key.sequence = (plausible & 16) != 0 ? input.byte() % 4 : input.number(8);
  frame.fingerprint = (plausible & 32) != 0 ? kFingerprint : input.number(8);
  static constexpr std::uint64_t lengths[] = {0, 100, 160, 200, 512, 1024, 320, 1 << 16};
  frame.payload_bytes = (plausible & 64) != 0 ? lengths[input.byte() % 8] : input.number(6);
  return frame;
}

}  // namespace kf::fuzz
