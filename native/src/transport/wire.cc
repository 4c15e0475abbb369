#include "transport/wire.h"

namespace kf {

namespace {

// Offsets in the header; docs/protocol.md has the same table.
constexpr std::size_t kKind = 0, kCode = 1, kMark = 2, kTransfer = 4, kCell = 8, kScope = 16,
                      kSequence = 24, kFingerprint = 32, kPayload = 40;
constexpr std::uint64_t kMarkValue = 0x464B;                     // "KF"
constexpr std::uint64_t kMaxDataBytes = std::uint64_t{1} << 48;  // beyond any real message

void put(Header& header, std::size_t at, std::uint64_t value, std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < bytes; ++i) {
    header[at + i] = static_cast<std::byte>((value >> (8 * i)) & 0xFF);
  }
}

std::uint64_t get(const std::byte* bytes, std::size_t at, std::size_t count) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) {
    value |= std::to_integer<std::uint64_t>(bytes[at + i]) << (8 * i);
  }
  return value;
}

}  // namespace

Header encode(const Frame& frame) noexcept {
  Header header{};
  put(header, kKind, static_cast<std::uint64_t>(frame.kind), 1);
  put(header, kCode, frame.code, 1);
  put(header, kMark, kMarkValue, 2);
  put(header, kTransfer, frame.transfer, 4);
  put(header, kCell, frame.cell, 4);
  put(header, kScope, frame.key.scope, 8);
  put(header, kSequence, frame.key.sequence, 8);
  put(header, kFingerprint, frame.fingerprint, 8);
  put(header, kPayload, frame.payload_bytes, 8);
  return header;
}

bool decode(const std::byte* bytes, Frame& frame) noexcept {
  const std::uint64_t kind = get(bytes, kKind, 1);
  if (get(bytes, kMark, 2) != kMarkValue || kind < 1 || kind > 5) return false;
  frame.kind = static_cast<FrameKind>(kind);
  frame.code = static_cast<std::uint8_t>(get(bytes, kCode, 1));
  frame.transfer = static_cast<std::uint32_t>(get(bytes, kTransfer, 4));
  frame.cell = static_cast<std::uint32_t>(get(bytes, kCell, 4));
  frame.key.scope = get(bytes, kScope, 8);
  frame.key.sequence = get(bytes, kSequence, 8);
  frame.fingerprint = get(bytes, kFingerprint, 8);
  frame.payload_bytes = get(bytes, kPayload, 8);
  return frame.payload_bytes <=
         (frame.kind == FrameKind::data ? kMaxDataBytes : std::uint64_t{kMaxControlBytes});
}

void append_number(std::string& to, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) to.push_back(static_cast<char>((value >> (8 * i)) & 0xFF));
}

std::uint64_t read_number(std::string_view from, std::size_t at, int bytes) noexcept {
  std::uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) {
    value |= static_cast<std::uint64_t>(
                 static_cast<unsigned char>(from[at + static_cast<std::size_t>(i)]))
             << (8 * i);
  }
  return value;
}

}  // namespace kf
