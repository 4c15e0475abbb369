// How numbers and frame headers stand on the wire: little-endian, fixed sizes. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kf/transport.h"

namespace kf {

inline constexpr std::size_t kHeaderBytes = 48;
using Header = std::array<std::byte, kHeaderBytes>;

Header encode(const Frame& frame) noexcept;
// False when the bytes are no header: unknown kind, wrong mark, or a length beyond the bound of
// its kind. Nothing may be allocated for a frame before this has said true.
bool decode(const std::byte* bytes, Frame& frame) noexcept;

void append_number(std::string& to, std::uint64_t value, int bytes);
std::uint64_t read_number(std::string_view from, std::size_t at, int bytes) noexcept;

}  // namespace kf
