#include "executor/norms.h"

#include <algorithm>

#include "executor/kernels.h"

namespace kf {

namespace {

bool measured(const Piece& piece) {
  return piece.op == ReduceOp::avg && (piece.dtype == DType::f32 || piece.dtype == DType::f64);
}

}  // namespace

NormShape::NormShape(const Layout& layout, const Schedule& schedule, std::int64_t cell_bytes) {
  for (int chunk = 0; chunk < schedule.chunk_count; ++chunk) {
    const ByteRange range = layout.chunks(schedule, chunk, 1);
    for (std::int64_t begin = range.begin; begin < range.end;) {
      const std::int64_t end = std::min((begin / cell_bytes + 1) * cell_bytes, range.end);
      add(layout, {begin, end});
      begin = end;
    }
  }
  std::sort(atoms_.begin(), atoms_.end(),
            [](const Atom& a, const Atom& b) { return a.offset < b.offset; });
}

void NormShape::add(const Layout& layout, ByteRange range) {
  for (std::size_t i = layout.piece_at(range.begin); i < layout.pieces().size(); ++i) {
    const std::int64_t start = layout.offset(i);
    if (start >= range.end) break;
    const Piece& piece = layout.pieces()[i];
    const std::int64_t size = element_bytes(piece.dtype);
    const std::int64_t begin = std::max(range.begin, start);
    const std::int64_t end = std::min(range.end, start + piece.count * size);
    if (begin >= end || !measured(piece)) continue;
    atoms_.push_back({begin, i, (begin - start) / size, (end - begin) / size});
  }
}

std::pair<std::size_t, std::size_t> NormShape::inside(ByteRange range) const noexcept {
  const auto at = [&](std::int64_t offset) {
    const auto found =
        std::lower_bound(atoms_.begin(), atoms_.end(), offset,
                         [](const Atom& atom, std::int64_t o) { return atom.offset < o; });
    return static_cast<std::size_t>(found - atoms_.begin());
  };
  return {at(range.begin), at(range.end)};
}

NormPart::NormPart(std::shared_ptr<const NormShape> shape, const Layout& layout)
    : shape_(std::move(shape)), pieces_(layout.pieces()) {
  for (Sums* sums : {&local_, &result_}) {
    sums->of.assign(shape_->atoms().size(), 0);
    sums->done.assign(shape_->atoms().size(), 0);
  }
}

void NormPart::count(Sums& sums, std::size_t atom) {
  if (sums.done[atom] != 0) return;
  sums.done[atom] = 1;
  const NormShape::Atom& where = shape_->atoms()[atom];
  const Piece& piece = pieces_[where.piece];
  sums.of[atom] =
      piece.dtype == DType::f32
          ? active_kernels().squares32(static_cast<const float*>(piece.data) + where.element,
                                       where.count)
          : active_kernels().squares64(static_cast<const double*>(piece.data) + where.element,
                                       where.count);
}

void NormPart::count(Sums& sums, ByteRange range) {
  const auto [first, last] = shape_->inside(range);
  for (std::size_t atom = first; atom < last; ++atom) count(sums, atom);
}

double NormPart::total(Sums& sums) {
  double total = 0;
  for (std::size_t atom = 0; atom < sums.of.size(); ++atom) {
    count(sums, atom);
    total += sums.of[atom];
  }
  return total;
}

double NormPart::local() {
  return total(local_);
}
double NormPart::result() {
  return total(result_);
}

double NormSums::result() const {
  double total = 0;
  for (const std::shared_ptr<NormPart>& part : parts_) total += part->result();
  return total;
}

void NormSums::tell() {
  if (told_ || !tell_) return;
  told_ = true;
  double total = 0;
  for (const std::shared_ptr<NormPart>& part : parts_) total += part->local();
  tell_(total);
}

}  // namespace kf
