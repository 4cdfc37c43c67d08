// What the fp64 oracles share: reading tensors as doubles and the named roundings. Nothing here is
// fast, and no implementation uses it.

#pragma once

#include <cmath>
#include <vector>

#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/float16.h"
#include "dsv4/formats/ue8m0.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4::oracle {

// Element `i`, counted from view.data; the caller applies strides.
inline double value(const ConstTensorView& view, int64_t i) {
  switch (view.dtype) {
    case DType::kF32:
      return static_cast<double>(view.as<float>()[i]);
    case DType::kBF16:
      return static_cast<double>(bf16_to_f32(view.as<uint16_t>()[i]));
    case DType::kF16:
      return static_cast<double>(f16_to_f32(view.as<uint16_t>()[i]));
    case DType::kE4M3:
      return static_cast<double>(e4m3_to_f32(view.as<uint8_t>()[i]));
    case DType::kE8M0:
      return static_cast<double>(ue8m0_to_f32(view.as<uint8_t>()[i]));
    case DType::kI32:
      return static_cast<double>(view.as<int32_t>()[i]);
    case DType::kI64:
      return static_cast<double>(view.as<int64_t>()[i]);
    default:
      return 0;
  }
}

// Row i of a tensor viewed as [numel / last, last]; rank-2 views may have strided rows.
inline std::vector<double> row(const ConstTensorView& view, int64_t i) {
  const int64_t n = view.dim(-1), start = i * (view.rank == 2 ? view.row_stride() : n);
  std::vector<double> values(static_cast<size_t>(n));
  for (int64_t c = 0; c < n; ++c) values[static_cast<size_t>(c)] = value(view, start + c);
  return values;
}

// Rounds through float first, as the reference does: its operands are floats.
inline double bf16(double v) {
  return static_cast<double>(round_to_bf16(static_cast<float>(v)));
}

// The values as a tensor, each rounded once by the store: what the next oracle of a composition
// reads. E8M0 takes powers of two.
inline Buffer stored(DType dtype, std::initializer_list<int64_t> shape,
                     const std::vector<double>& values) {
  Buffer tensor(dtype, shape);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto v = static_cast<float>(values[i]);
    switch (dtype) {
      case DType::kF32:
        tensor.as<float>()[i] = v;
        break;
      case DType::kBF16:
        tensor.as<uint16_t>()[i] = f32_to_bf16(v);
        break;
      case DType::kE4M3:
        tensor.as<uint8_t>()[i] = f32_to_e4m3(v);
        break;
      case DType::kE8M0:
        tensor.as<uint8_t>()[i] = static_cast<uint8_t>(127 + std::ilogb(v));
        break;
      default:  // I32
        tensor.as<int32_t>()[i] = static_cast<int32_t>(values[i]);
    }
  }
  return tensor;
}

}  // namespace dsv4::oracle
