#include "dsv4/ops/linear/product_cuda.h"

#include <algorithm>

#include "dsv4/ops/linear/product_vector.h"

namespace dsv4 {
namespace {

// Columns of a unit and bytes that rows must be aligned to, as weight_decode.cuh has them.
struct Unit {
  int columns;
  int64_t align;
};

Unit unit_of(const WeightStack& w) {
  switch (w.format) {
    case WeightFormat::kF32:
    case WeightFormat::kBF16:
    case WeightFormat::kF16:
      return {8, 16};
    case WeightFormat::kFp8Block:
      return {16, 16};
    case WeightFormat::kMxfp4:
    case WeightFormat::kNvfp4:
      return {32, 16};
    case WeightFormat::kKbit:
      return {32, w.bits % 2 == 0 ? 4 * w.bits : 4};
  }
  return {1, 1};
}

}  // namespace

bool in_whole_units(const Product& p) {
  return std::all_of(p.weight, p.weight + (p.stack_is_part ? 1 : p.parts), [&](const auto& w) {
    const auto [columns, align] = unit_of(w);
    return p.k % columns == 0 && reinterpret_cast<uintptr_t>(w.data) % align == 0 &&
           w.row_bytes % align == 0 && w.stack_bytes % align == 0;
  });
}

WeightStack single(const WeightView& w) {
  const auto row_bytes = [](const ConstTensorView& view) {
    return view.empty() ? 0 : view.row_stride() * item_bytes(view.dtype);
  };
  return {.format = w.format,
          .bits = w.bits,
          .scale_is_f32 = w.scale.dtype == DType::kF32,
          .data = w.data.data,
          .scale = w.scale.data,
          .codebook = w.codebook.empty() ? nullptr : w.codebook.as<float>(),
          .row_bytes = row_bytes(w.data),
          .scale_row_bytes = row_bytes(w.scale),
          .scale2 =
              w.format == WeightFormat::kNvfp4 || w.format == WeightFormat::kKbit ? w.scale2 : 1.f};
}

int vector_tile(int64_t pairs, int64_t matrices, DType x_dtype) {
  const double each =
      static_cast<double>(pairs) / static_cast<double>(std::max<int64_t>(1, matrices));
  if (x_dtype == DType::kF32) return each <= 1 ? 1 : 4;
  // A random choice of matrices leaves most with one pair up to a quarter each, with two up to one.
  if (matrices == 1) return each <= 1 ? 1 : each <= 2 ? 2 : each <= 4 ? 4 : 8;
  return each <= 0.25 ? 1 : each <= 1 ? 2 : each <= 4 ? 4 : 8;
}

void run_vector_product(Device& device, const Product& p) {
  if (p.n == 0) return;
  if (!in_whole_units(p)) return product::vector_any(device, p);
  switch (p.weight[0].format) {
    case WeightFormat::kF32:
    case WeightFormat::kBF16:
    case WeightFormat::kF16:
      return product::vector_float(device, p);
    case WeightFormat::kFp8Block:
      return product::vector_fp8(device, p);
    case WeightFormat::kMxfp4:
    case WeightFormat::kNvfp4:
      return product::vector_fp4(device, p);
    case WeightFormat::kKbit:
      return product::vector_kbit(device, p);
  }
}

}  // namespace dsv4
