// SHA-256 (FIPS 180-4), HMAC (RFC 2104) and a comparison that takes the same time for any
// input. Pure functions; used for the handshake only, so they are written to be short, not
// fast.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace kf {

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(std::string_view message);
Digest hmac_sha256(std::string_view key, std::string_view message);
bool equal_in_constant_time(std::string_view a, std::string_view b) noexcept;
std::string_view bytes_of(const Digest& digest) noexcept;

}  // namespace kf
