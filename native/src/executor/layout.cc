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

Layout::Layout(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
  bool mixed = false;
  std::int64_t size = 0;
  for (const Piece& piece : pieces_) {
    const std::int64_t bytes = element_bytes(piece.dtype);
    if (piece.count < 0 || piece.count > std::numeric_limits<std::int64_t>::max() / 64) {
      throw Error(ErrorCode::usage,
                  "count must be in [0, 2^57), got " + std::to_string(piece.count));
    }
    mixed = mixed || (size != 0 && size != bytes);
    size = bytes;
  }
  unit_ = mixed ? kMixedUnit : std::max<std::int64_t>(size, 1);
  for (const Piece& piece : pieces_) {
    offsets_.push_back(round_up(end_, unit_));
    end_ = offsets_.back() + piece.count * element_bytes(piece.dtype);
  }
}

ByteRange Layout::chunks(const Schedule& schedule, int begin, int count) const noexcept {
  const std::int64_t total = units();
  const int blocks = owned_blocks(schedule.collective, schedule.world_size);
  const bool even = blocks > 0 && schedule.chunk_count % blocks == 0 && total % blocks == 0;
  const int per_block = even ? schedule.chunk_count / blocks : schedule.chunk_count;
  const std::int64_t block_units = even ? total / blocks : total;
  const auto bounds = [&](int chunk) {
    const ChunkRange inside = chunk_range(block_units, per_block, chunk % per_block);
    const std::int64_t first = static_cast<std::int64_t>(chunk / per_block) * block_units;
    return ChunkRange{first + inside.begin, inside.count};
  };
  const ChunkRange first = bounds(begin);
  const ChunkRange last = bounds(begin + count - 1);
  return {first.begin * unit_, std::min((last.begin + last.count) * unit_, end_)};
}

void Layout::append_regions(ByteRange range, std::vector<Region>& regions) const {
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const std::int64_t piece_end =
        offsets_[i] + pieces_[i].count * element_bytes(pieces_[i].dtype);
    const std::int64_t begin = std::max(range.begin, offsets_[i]);
    const std::int64_t end = std::min(range.end, piece_end);
    if (begin >= end) continue;
    auto* base = static_cast<std::byte*>(pieces_[i].data);
    regions.emplace_back(base + (begin - offsets_[i]), static_cast<std::size_t>(end - begin));
  }
}

std::int64_t Layout::payload_bytes(ByteRange range) const noexcept {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const std::int64_t piece_end =
        offsets_[i] + pieces_[i].count * element_bytes(pieces_[i].dtype);
    bytes += std::max<std::int64_t>(
        0, std::min(range.end, piece_end) - std::max(range.begin, offsets_[i]));
  }
  return bytes;
}

Elements Layout::elements_at(ByteRange range, std::int64_t skip) const noexcept {
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const std::int64_t size = element_bytes(pieces_[i].dtype);
    const std::int64_t piece_end = offsets_[i] + pieces_[i].count * size;
    const std::int64_t begin = std::max(range.begin, offsets_[i]);
    const std::int64_t end = std::min(range.end, piece_end);
    if (begin >= end) continue;
    if (skip >= end - begin) {
      skip -= end - begin;
      continue;
    }
    auto* base = static_cast<std::byte*>(pieces_[i].data) + (begin + skip - offsets_[i]);
    return {base, (end - begin - skip) / size, pieces_[i].dtype, pieces_[i].op};
  }
  return {nullptr, 0, DType::u8, ReduceOp::sum};
}

}  // namespace kf
