// Where the chunks and cells of a schedule's buffer lie in the caller's memory. Pure
// arithmetic.
//
// Terms: buffer: the concatenation of the pieces; unit: what chunk_range counts, one element
// when
//        all elements have one size, else 16 bytes with every piece starting on a unit, so that
//        no cut ever splits an element; offset: position in the buffer in bytes, padding
//        included; cell: a square of a fixed grid over the buffer, the segment of pipelining.
// Threads: a value; safe everywhere.
// Ownership: points at the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kf/schedule.h"
#include "kf/transport.h"
#include "kf/types.h"

namespace kf {

struct ByteRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool empty() const noexcept { return begin >= end; }
};

// A part of one piece: `count` whole elements at `data`.
struct Elements {
  std::byte* data;
  std::int64_t count;
  DType dtype;
  ReduceOp op;
};

class Layout {
 public:
  // `blocks`: units each owner has, for the collectives whose chunks are owned; empty: equally
  // many. Throws Error{usage} for a negative count, or one whose bytes do not fit 63 bits.
  explicit Layout(std::vector<Piece> pieces, const std::vector<std::int64_t>& blocks = {});

  // Takes the memory of other pieces of the same types and counts.
  void rebind(std::span<const Piece> pieces) noexcept;

  std::int64_t bytes() const noexcept { return end_; }  // of the buffer, padding included
  std::int64_t unit_bytes() const noexcept { return unit_; }
  std::int64_t units() const noexcept { return (end_ + unit_ - 1) / unit_; }
  const std::vector<Piece>& pieces() const noexcept { return pieces_; }
  std::int64_t offset(std::size_t piece) const noexcept { return offsets_[piece]; }
  std::size_t piece_at(std::int64_t offset) const noexcept;  // the last that begins there

  // The run of chunks [begin, begin + count) of a schedule's buffer. For the collectives whose
  // chunks are owned by ranks the buffer is cut into blocks first, one an owner, so that
  // a rank's elements are the same whatever the number of chunks.
  ByteRange chunks(const Schedule& schedule, int begin, int count) const noexcept;

  // The memory of a range whose ends fall on units, without padding; appended to `regions`.
  void append_regions(ByteRange range, std::vector<Region>& regions) const;
  std::int64_t payload_bytes(ByteRange range) const noexcept;

  // The first elements of `range` after its first `skip` payload bytes, all of one piece.
  // `skip` falls on an element; nothing is left: count is 0.
  Elements elements_at(ByteRange range, std::int64_t skip) const noexcept;

 private:
  std::int64_t end_of(std::size_t piece) const noexcept;

  std::vector<Piece> pieces_;
  std::vector<std::int64_t> offsets_;      // of each piece in the buffer, ascending
  std::vector<std::int64_t> block_begin_;  // in units, and where the last block ends
  bool padded_ = false;                    // there may be bytes between pieces
  std::int64_t unit_ = 1;
  std::int64_t end_ = 0;
};

// Owned collectives: blocks each rank or pair of ranks owns, 0 where nothing is owned.
int owned_blocks(Collective collective, int world_size) noexcept;

}  // namespace kf
