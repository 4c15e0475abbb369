#include "executor/layout.h"

#include <algorithm>
#include <limits>
#include <string>

#include "kf/error.h"

namespace kf {

namespace {

constexpr std::int64_t kMixedUnit = 16;  // every element size divides it

std::int64_t round_up(std::int64_t value, std::int64_t to) {
  return (value + to - 1) / to * to;
}

}  // namespace

int owned_blocks(Collective collective, int world_size) noexcept {
  switch (collective) {
    case Collective::reduce_scatter:
    case Collective::all_gather:
    case Collective::gather:
    case Collective::scatter:
      return world_size;
    case Collective::all_to_all:
      return world_size * world_size;
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::broadcast:
    case Collective::barrier:
      return 0;
  }
  return 0;
}

Layout::Layout(std::vector<Piece> pieces, const std::vector<std::int64_t>& blocks)
    : pieces_(std::move(pieces)) {
  std::int64_t size = 0;
  for (const Piece& piece : pieces_) {
    const std::int64_t bytes = element_bytes(piece.dtype);
    if (piece.count < 0 || piece.count > std::numeric_limits<std::int64_t>::max() / 64) {
      throw Error(ErrorCode::usage,
                  "count must be in [0, 2^57), got " + std::to_string(piece.count));
    }
    padded_ = padded_ || (size != 0 && size != bytes);
    size = bytes;
  }
  unit_ = padded_ ? kMixedUnit : std::max<std::int64_t>(size, 1);
  offsets_.reserve(pieces_.size());
  for (const Piece& piece : pieces_) {
    offsets_.push_back(round_up(end_, unit_));
    end_ = offsets_.back() + piece.count * element_bytes(piece.dtype);
  }
  if (blocks.empty()) return;
  block_begin_.push_back(0);
  for (const std::int64_t block : blocks) block_begin_.push_back(block_begin_.back() + block);
}

std::int64_t Layout::end_of(std::size_t piece) const noexcept {
  return offsets_[piece] + pieces_[piece].count * element_bytes(pieces_[piece].dtype);
}

std::size_t Layout::piece_at(std::int64_t offset) const noexcept {
  const auto after = std::upper_bound(offsets_.begin(), offsets_.end(), offset);
  return after == offsets_.begin() ? 0 : static_cast<std::size_t>(after - offsets_.begin() - 1);
}

void Layout::rebind(std::span<const Piece> pieces) noexcept {
  for (std::size_t i = 0; i < pieces_.size(); ++i) pieces_[i].data = pieces[i].data;
}

ByteRange Layout::chunks(const Schedule& schedule, int begin, int count) const noexcept {
  const std::int64_t total = units();
  const int blocks = owned_blocks(schedule.collective, schedule.world_size);
  const bool owned = blocks > 0 && schedule.chunk_count % blocks == 0 &&
                     (!block_begin_.empty() || total % blocks == 0);
  const int per_block = owned ? schedule.chunk_count / blocks : schedule.chunk_count;
  const auto block_start = [&](int block) {
    if (!block_begin_.empty()) return block_begin_[static_cast<std::size_t>(block)];
    return owned ? total / blocks * block : total * block;
  };
  const auto bounds = [&](int chunk) {
    const int block = chunk / per_block;
    const std::int64_t start = block_start(block);
    const ChunkRange inside =
        chunk_range(block_start(block + 1) - start, per_block, chunk % per_block);
    return ChunkRange{start + inside.begin, inside.count};
  };
  const ChunkRange first = bounds(begin);
  const ChunkRange last = bounds(begin + count - 1);
  return {first.begin * unit_, std::min((last.begin + last.count) * unit_, end_)};
}

void Layout::append_regions(ByteRange range, std::vector<Region>& regions) const {
  for (std::size_t i = piece_at(range.begin); i < pieces_.size() && offsets_[i] < range.end;
       ++i) {
    const std::int64_t begin = std::max(range.begin, offsets_[i]);
    const std::int64_t end = std::min(range.end, end_of(i));
    if (begin >= end) continue;
    auto* base = static_cast<std::byte*>(pieces_[i].data);
    regions.emplace_back(base + (begin - offsets_[i]), static_cast<std::size_t>(end - begin));
  }
}

std::int64_t Layout::payload_bytes(ByteRange range) const noexcept {
  if (!padded_) return std::max<std::int64_t>(0, std::min(range.end, end_) - range.begin);
  std::int64_t bytes = 0;
  for (std::size_t i = piece_at(range.begin); i < pieces_.size() && offsets_[i] < range.end;
       ++i) {
    bytes += std::max<std::int64_t>(
        0, std::min(range.end, end_of(i)) - std::max(range.begin, offsets_[i]));
  }
  return bytes;
}

Elements Layout::elements_at(ByteRange range, std::int64_t skip) const noexcept {
  if (!padded_) {
    range.begin += skip;
    skip = 0;
  }
  for (std::size_t i = piece_at(range.begin); i < pieces_.size() && offsets_[i] < range.end;
       ++i) {
    const std::int64_t begin = std::max(range.begin, offsets_[i]);
    const std::int64_t end = std::min(range.end, end_of(i));
    if (begin >= end) continue;
    if (skip >= end - begin) {
      skip -= end - begin;
      continue;
    }
    auto* base = static_cast<std::byte*>(pieces_[i].data) + (begin + skip - offsets_[i]);
    return {base, (end - begin - skip) / element_bytes(pieces_[i].dtype), pieces_[i].dtype,
            pieces_[i].op};
  }
  return {nullptr, 0, DType::u8, ReduceOp::sum};
}

}  // namespace kf
