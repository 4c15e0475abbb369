// Squared norms of gradients, accumulated in float64.
//
// Threads: functions are pure; a NormSums is used under the lock of the session that it was
// given to, and by its owner when the operations are done. The order of additions is fixed and
// does not depend on the machine's vector width, so ranks that hold the same gradient bits get
// the same norm bits.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kf {

class NormPart;

// Sum of squares of all elements; 0 for none. NaN or infinity where an element is.
double squared_norm(std::span<const float> values) noexcept;
double squared_norm(std::span<const double> values) noexcept;

// Both squared norms of a gradient that is averaged: summed by the operations that average it,
// block by block while a block is in the cache anyway. Counts the pieces of type f32 and f64
// whose operator is avg; 16-bit ones count as the f32 that they are reduced as.
// Shared through the C++ count only: whoever lets go last needs no interpreter.
class NormSums : public std::enable_shared_from_this<NormSums> {
 public:
  // Called with |g|^2 of this rank's own gradient, once, before the memory at `words` is first
  // read: these words can then travel with the gradient they tell of. They stand in a piece of
  // the last operation. Without it only the result is measured.
  using Tell = std::function<void(double)>;
  NormSums() = default;
  NormSums(const void* words, Tell tell) : words_(words), tell_(std::move(tell)) {}

  // Of the averages, the same bits on all ranks that ran the same schedule; once all is done.
  double result() const;

  // For operations, in the order in which they start.
  void add(std::shared_ptr<NormPart> part) { parts_.push_back(std::move(part)); }
  bool wants_local() const noexcept { return static_cast<bool>(tell_); }
  const void* words() const noexcept { return words_; }
  void tell();  // counts what is left of the local gradient; nothing when it was told before

 private:
  const void* words_ = nullptr;
  Tell tell_;
  bool told_ = false;
  std::vector<std::shared_ptr<NormPart>> parts_;
};

}  // namespace kf
