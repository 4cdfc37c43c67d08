// Bytes as hexadecimal digits in lower case.

#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace dsv4 {

std::string hex_digits(std::span<const uint8_t> bytes);

}  // namespace dsv4
