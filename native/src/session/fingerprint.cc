#include "session/fingerprint.h"

namespace kf {

namespace {

constexpr std::size_t kPiecesShown = 8;

// FNV-1a, 64 bits: enough to tell honest ranks apart; it is no protection against forgery.
class Hash {
 public:
  void add(std::string_view bytes) noexcept {
    for (const char c : bytes) step(static_cast<unsigned char>(c));
    step(0xFF);  // a separator that no text contains
  }
  void add(std::uint64_t value) noexcept {
    for (int shift = 0; shift < 64; shift += 8) step((value >> shift) & 0xFF);
  }
  std::uint64_t value() const noexcept { return state_; }

 private:
  void step(std::uint64_t byte) noexcept { state_ = (state_ ^ byte) * 0x100000001B3ULL; }
  std::uint64_t state_ = 0xCBF29CE484222325ULL;
};

}  // namespace

bool reduces(Collective collective) noexcept {
  return collective == Collective::all_reduce || collective == Collective::reduce ||
         collective == Collective::reduce_scatter;
}

bool has_root(Collective collective) noexcept {
  return collective == Collective::reduce || collective == Collective::broadcast ||
         collective == Collective::gather || collective == Collective::scatter;
}

std::uint64_t hash_name(std::string_view name) noexcept {
  Hash hash;
  hash.add(name);
  return hash.value() == 0 ? 1 : hash.value();
}

std::uint64_t fingerprint(const Meaning& meaning) noexcept {
  Hash hash;
  hash.add(static_cast<std::uint64_t>(meaning.collective));
  hash.add(static_cast<std::uint64_t>(has_root(meaning.collective) ? meaning.root : 0));
  hash.add(meaning.name);
  hash.add(meaning.schedule);
  hash.add(static_cast<std::uint64_t>(meaning.eager_bytes));
  hash.add(static_cast<std::uint64_t>(meaning.segment_bytes));
  for (const Piece& piece : meaning.pieces) {
    hash.add(static_cast<std::uint64_t>(piece.dtype));
    hash.add(static_cast<std::uint64_t>(piece.count));
    if (reduces(meaning.collective)) hash.add(static_cast<std::uint64_t>(piece.op));
  }
  for (const std::int64_t block : meaning.blocks) hash.add(static_cast<std::uint64_t>(block));
  for (const int member : meaning.members) hash.add(static_cast<std::uint64_t>(member));
  if (!meaning.site.empty()) hash.add(meaning.site);
  if (meaning.tag != nullptr) hash.add(static_cast<std::uint64_t>(*meaning.tag));
  return hash.value();
}

namespace {

// The first few numbers of a list, e.g. `1, 2, ...`.
template <class T>
std::string numbers(std::span<const T> values) {
  std::string text;
  for (std::size_t i = 0; i < values.size() && i < kPiecesShown; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  }
  return text + (values.size() > kPiecesShown ? ", ..." : "");
}

std::string pieces_in_words(const Meaning& meaning) {
  std::int64_t elements = 0;
  for (const Piece& piece : meaning.pieces) elements += piece.count;
  if (!meaning.blocks.empty() && !meaning.pieces.empty()) {
    return std::string(" ") + to_string(meaning.pieces.front().dtype) + "[" +
           std::to_string(elements) + "] in blocks of " + numbers(meaning.blocks);
  }
  std::string text;
  for (std::size_t i = 0; i < meaning.pieces.size() && i < kPiecesShown; ++i) {
    const Piece& piece = meaning.pieces[i];
    text += std::string(i == 0 ? " " : ", ") + to_string(piece.dtype) + "[" +
            std::to_string(piece.count) + "]";
    if (reduces(meaning.collective)) text += std::string(":") + to_string(piece.op);
  }
  if (meaning.pieces.size() > kPiecesShown) {
    text += ", ... (" + std::to_string(meaning.pieces.size()) + " pieces, " +
            std::to_string(elements) + " elements)";
  }
  return text;
}

}  // namespace

std::string in_words(const Meaning& meaning) {
  if (meaning.tag != nullptr) {
    return "send/recv" + pieces_in_words(meaning) + " from rank " +
           std::to_string(meaning.members[0]) + " to rank " +
           std::to_string(meaning.members[1]) + ", tag " + std::to_string(*meaning.tag);
  }
  std::string text = to_string(meaning.collective);
  if (!meaning.name.empty()) text += " \"" + std::string(meaning.name.substr(0, 200)) + "\"";
  text += pieces_in_words(meaning);
  if (has_root(meaning.collective)) text += " with root " + std::to_string(meaning.root);
  if (!meaning.members.empty()) text += " in group [" + numbers(meaning.members) + "]";
  text += " by " + std::string(meaning.schedule.substr(0, 200));
  if (!meaning.site.empty()) text += " at " + std::string(meaning.site.substr(0, 200));
  return text;
}

}  // namespace kf
