// Element types of tensors: name, width, spelling in safetensors.

#pragma once

#include <cstdint>
#include <string_view>

namespace dsv4 {

enum class DType : uint8_t {
  kF64,
  kF32,
  kBF16,
  kF16,
  kE4M3,
  kE8M0,
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kBool
};

// Bytes of one element. Inline: every typed access checks it.
constexpr int64_t item_bytes(DType dtype) {
  constexpr int64_t kBytes[] = {8, 4, 2, 2, 1, 1, 8, 4, 2, 1, 1, 1};
  return kBytes[static_cast<int>(dtype)];
}
std::string_view name(DType dtype);  // safetensors spelling: "F32", "BF16", "F8_E4M3", ...
bool parse_dtype(std::string_view safetensors_name, DType* out);  // false: unknown name

}  // namespace dsv4
