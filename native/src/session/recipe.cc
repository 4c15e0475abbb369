#include "session/recipe.h"

#include <algorithm>

namespace kf {

namespace {

constexpr std::size_t kMostRecipes = 1024;  // shapes that change all the time must not pile up

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) noexcept {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 29);
}

std::uint64_t key_of(Collective collective, int root, std::string_view name,
                     std::span<const Piece> pieces) noexcept {
  std::uint64_t hash =
      mix(static_cast<std::uint64_t>(collective), static_cast<std::uint64_t>(root));
  for (const char c : name) hash = mix(hash, static_cast<unsigned char>(c));
  for (const Piece& piece : pieces) {
    const auto kind =
        static_cast<std::uint64_t>(piece.dtype) * 16 + static_cast<std::uint64_t>(piece.op);
    hash = mix(mix(hash, kind), static_cast<std::uint64_t>(piece.count));
  }
  return hash;
}

}  // namespace

bool Recipe::fits(Collective other, int other_root, std::string_view other_name,
                  std::span<const Piece> others) const noexcept {
  return collective == other && root == other_root && name == other_name &&
         std::equal(pieces.begin(), pieces.end(), others.begin(), others.end(),
                    [](const Piece& a, const Piece& b) {
                      return a.count == b.count && a.dtype == b.dtype && a.op == b.op;
                    });
}

std::shared_ptr<const Recipe> RecipeBook::find(Collective collective, int root,
                                               std::string_view name,
                                               std::span<const Piece> pieces) {
  if (last_ != nullptr && last_->fits(collective, root, name, pieces)) return last_;
  const auto [first, end] = recipes_.equal_range(key_of(collective, root, name, pieces));
  for (auto entry = first; entry != end; ++entry) {
    if (!entry->second->fits(collective, root, name, pieces)) continue;
    last_ = entry->second;
    return last_;
  }
  return nullptr;
}

void RecipeBook::add(std::shared_ptr<const Recipe> recipe) {
  if (recipes_.size() >= kMostRecipes) recipes_.clear();
  last_ = recipe;
  const std::uint64_t key =
      key_of(recipe->collective, recipe->root, recipe->name, recipe->pieces);
  recipes_.emplace(key, std::move(recipe));
}

void RecipeBook::clear() noexcept {
  last_.reset();
  recipes_.clear();
}

}  // namespace kf
