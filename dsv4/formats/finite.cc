#include "dsv4/formats/finite.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/float16.h"
#include "dsv4/formats/ue8m0.h"

namespace dsv4 {
namespace {

// A value is not a number when all bits of the mask are set in its code.
template <class Code>
std::optional<int64_t> first_with(const Code* codes, int64_t n, Code mask) {
  constexpr int64_t kBlock = 1024;  // without a branch inside, so that the compiler vectorizes
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, n);
    unsigned found = 0;
    for (int64_t i = begin; i < end; ++i) found |= static_cast<unsigned>((codes[i] & mask) == mask);
    if (found == 0) continue;
    for (int64_t i = begin; i < end; ++i) {
      if ((codes[i] & mask) == mask) return i;
    }
  }
  return std::nullopt;
}

std::optional<int64_t> first_in_row(DType dtype, const std::byte* data, int64_t n) {
  const auto codes = [&]<class Code>(Code mask) {
    return first_with(reinterpret_cast<const Code*>(data), n, mask);
  };
  switch (dtype) {
    case DType::kF64:
      return codes(uint64_t{0x7ff0000000000000});
    case DType::kF32:
      return codes(uint32_t{0x7f800000});
    case DType::kBF16:
      return codes(uint16_t{0x7f80});
    case DType::kF16:
      return codes(uint16_t{0x7c00});
    case DType::kE4M3:
      return codes(uint8_t{0x7f});
    case DType::kE8M0:
      return codes(uint8_t{0xff});
    default:
      return std::nullopt;
  }
}

// Calls on_row(bytes, number of values, index of the first) for every contiguous row until it
// returns an index.
template <class OnRow>
std::optional<int64_t> for_each_row(const ConstTensorView& view, const OnRow& on_row) {
  if (view.numel() == 0) return std::nullopt;
  if (view.is_contiguous()) return on_row(view.data, view.numel());
  const int64_t columns = view.dim(-1), rows = view.numel() / columns;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t offset = 0, rest = row;
    for (int axis = view.rank - 2; axis >= 0; --axis) {
      offset += rest % view.dim(axis) * view.stride[static_cast<size_t>(axis)];
      rest /= view.dim(axis);
    }
    if (const auto at = on_row(view.data + offset * item_bytes(view.dtype), columns))
      return row * columns + *at;
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> first_non_finite(const ConstTensorView& view) {
  return for_each_row(
      view, [&](const std::byte* data, int64_t n) { return first_in_row(view.dtype, data, n); });
}

std::optional<int64_t> first_bad_score(const ConstTensorView& scores) {
  return for_each_row(scores, [&](const std::byte* data, int64_t n) -> std::optional<int64_t> {
    const auto* values = reinterpret_cast<const float*>(data);
    for (int64_t i = 0; i < n; ++i) {
      if (!(values[i] <= std::numeric_limits<float>::max())) return i;
    }
    return std::nullopt;
  });
}

double value_at(const ConstTensorView& view, int64_t index) {
  int64_t offset = 0;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    offset += index % view.dim(axis) * view.stride[static_cast<size_t>(axis)];
    index /= view.dim(axis);
  }
  switch (view.dtype) {
    case DType::kF64:
      return view.as<double>()[offset];
    case DType::kF32:
      return view.as<float>()[offset];
    case DType::kBF16:
      return bf16_to_f32(view.as<uint16_t>()[offset]);
    case DType::kF16:
      return f16_to_f32(view.as<uint16_t>()[offset]);
    case DType::kE4M3:
      return e4m3_to_f32(view.as<uint8_t>()[offset]);
    case DType::kE8M0:
      return ue8m0_to_f32(view.as<uint8_t>()[offset]);
    default:
      return std::numeric_limits<double>::quiet_NaN();
  }
}

}  // namespace dsv4
