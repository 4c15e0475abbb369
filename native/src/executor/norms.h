// Squares of one operation's elements: which blocks there are, and which have been summed.
//
// Terms: atom: elements of one piece, one chunk and one cell. Every message of every rank moves
//        whole atoms, so their sums, added in the order of the buffer, are the same bits
//        whatever came first; local: as the caller gave them; result: averaged.
// Threads: used under the owner's lock only.
// Ownership: a part points at the memory of its operation, until that is done.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "executor/layout.h"
#include "kf/norm.h"

namespace kf {

// The atoms of a buffer; depends on no address.
class NormShape {
 public:
  struct Atom {
    std::int64_t offset;  // in the buffer, bytes
    std::size_t piece;
    std::int64_t element;  // first one of the piece
    std::int64_t count;
  };

  NormShape(const Layout& layout, const Schedule& schedule, std::int64_t cell_bytes);

  const std::vector<Atom>& atoms() const noexcept { return atoms_; }
  // Indices [first, last) of the atoms that begin in a range.
  std::pair<std::size_t, std::size_t> inside(ByteRange range) const noexcept;

 private:
  void add(const Layout& layout, ByteRange range);
  std::vector<Atom> atoms_;  // ascending offset
};

class NormPart {
 public:
  NormPart(std::shared_ptr<const NormShape> shape, const Layout& layout);

  void count_local(ByteRange range) { count(local_, range); }
  void count_result(ByteRange range) { count(result_, range); }
  double local();   // counts what is missing
  double result();  // likewise

 private:
  struct Sums {
    std::vector<double> of;  // by atom
    std::vector<char> done;
  };
  void count(Sums& sums, ByteRange range);
  void count(Sums& sums, std::size_t atom);
  double total(Sums& sums);

  std::shared_ptr<const NormShape> shape_;
  std::vector<Piece> pieces_;
  Sums local_;
  Sums result_;
};

}  // namespace kf
