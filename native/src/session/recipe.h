// What all operations of one meaning have in common, and a cache of it: a training job repeats
// the same few operations for ever, so everything that can be is worked out once.
//
// Threads: one thread at a time. Ownership: recipes are shared with the operations that use
// them and live as long as these.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "executor/operation.h"
#include "kf/schedule.h"
#include "kf/types.h"

namespace kf {

struct Recipe {
  Collective collective;
  int root;
  std::string name;
  std::vector<Piece> pieces;  // types, counts and operators; the addresses mean nothing
  bool widens = false;        // some pieces are reduced in a wider type
  std::shared_ptr<const OperationShape> shape;

  bool fits(Collective other, int other_root, std::string_view other_name,
            std::span<const Piece> others) const noexcept;
};

class RecipeBook {
 public:
  // Null when there is none yet.
  std::shared_ptr<const Recipe> find(Collective collective, int root, std::string_view name,
                                     std::span<const Piece> pieces);
  void add(std::shared_ptr<const Recipe> recipe);
  void clear() noexcept;

 private:
  std::shared_ptr<const Recipe> last_;
  std::unordered_multimap<std::uint64_t, std::shared_ptr<const Recipe>> recipes_;
};

}  // namespace kf
