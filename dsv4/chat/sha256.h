// SHA-256 of a text, from libcrypto.

#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace dsv4 {

std::array<uint8_t, 32> sha256(std::string_view bytes);

}  // namespace dsv4
