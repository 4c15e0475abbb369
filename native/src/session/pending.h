// An operation a caller waits for: the executor's, and what has to be done around it.
//
// Threads: used under the session's lock.
// Ownership: owns the widened copies of 16-bit pieces, so it must outlive the operation.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "executor/combine.h"
#include "executor/operation.h"
#include "kf/session.h"
#include "session/claims.h"
#include "session/recipe.h"

namespace kf {

class Session::Pending {
 public:
  std::shared_ptr<Operation> operation;
  std::shared_ptr<const Recipe> recipe;  // what it may be restarted for; null: nothing
  Clock::time_point started{};
  Clock::time_point announced{};  // when its peers were last told that it stalls
  Clock::time_point deadline = Clock::time_point::max();  // of a background operation
  std::vector<MemorySpan> spans;                          // the caller's memory
  bool buffered = false;  // done as soon as the memory is free, see Session::send

  bool complete() const noexcept {
    return operation->done() || (buffered && operation->moved());
  }

  // 16-bit floats are summed and multiplied as 32-bit ones from the first rank to the last:
  // partial results neither overflow nor lose digits on the way.
  static bool needs_widening(const Piece& piece) noexcept {
    const bool half = piece.dtype == DType::f16 || piece.dtype == DType::bf16;
    return half && piece.op != ReduceOp::min && piece.op != ReduceOp::max;
  }
  Piece widen_piece(const Piece& piece) {
    wide_.emplace_back(static_cast<std::size_t>(piece.count));
    narrow_.push_back(piece);
    widen(piece.dtype, static_cast<const std::byte*>(piece.data), wide_.back().data(),
          piece.count);
    return {wide_.back().data(), piece.count, DType::f32, piece.op};
  }

  bool widened() const noexcept { return !narrow_.empty(); }

  // Once complete: the caller's memory gets the result.
  void finish() {
    for (std::size_t i = 0; i < narrow_.size(); ++i) {
      narrow(narrow_[i].dtype, wide_[i].data(), static_cast<std::byte*>(narrow_[i].data),
             narrow_[i].count);
    }
    narrow_.clear();
    wide_.clear();
  }

 private:
  std::vector<Piece> narrow_;             // the caller's pieces that were widened
  std::vector<std::vector<float>> wide_;  // what is reduced instead of them
};

}  // namespace kf
