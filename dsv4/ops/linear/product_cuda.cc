#include "dsv4/ops/linear/product_cuda.h"

#include <algorithm>

#include "dsv4/ops/linear/product_mma.h"
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

// At most what a block of the vector kernels needs: x padded by a half, and a few fixed arrays.
int64_t shared_bytes(const Product& p, int tile) {
  constexpr int64_t kFixed = 8 << 10;
  const int64_t x = int64_t{tile} * p.k * (p.x_dtype == DType::kF32 ? 4 : 2);
  return kFixed + (tile == 2 ? x + x / 2 : x + x / 4);
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
          .scale_is_f32 = !w.scale.empty() && w.scale.dtype == DType::kF32,
          .data = w.data.data,
          .scale = w.scale.data,
          .codebook = w.codebook.empty() ? nullptr : w.codebook.as<float>(),
          .row_bytes = row_bytes(w.data),
          .scale_row_bytes = row_bytes(w.scale),
          .scale2 =
              w.format == WeightFormat::kNvfp4 || w.format == WeightFormat::kKbit ? w.scale2 : 1.f};
}

int vector_tile(const Device& device, const Product& p, int64_t matrices) {
  const double each = static_cast<double>(p.num_pairs) / static_cast<double>(matrices);
  // A random choice of many matrices leaves most with one pair up to a quarter each, and so on.
  const double most = matrices == 1 ? each : 4 * each;
  int tile = p.x_dtype == DType::kF32 ? (most <= 1 ? 1 : 4)
             : most <= 1              ? 1
             : most <= 2              ? 2
             : most <= 4              ? 4
                                      : 8;
  while (tile > 1 && shared_bytes(p, tile) > device.info().shared_bytes) tile /= 2;
  if (p.x_dtype == DType::kF32 && tile == 2) tile = 1;
  return tile;
}

void run_vector_product(Device& device, const Product& p) {
  if (p.n == 0) return;
  if (!in_whole_units(p) || shared_bytes(p, p.tile_pairs) > device.info().shared_bytes)
    return product::vector_any(device, p);
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

int mma_tile(const Device& device, const Product& p, int64_t matrices) {
  const int64_t each = p.num_pairs / matrices;
  int tile = each <= 40 ? 32 : each <= 80 ? 64 : 128;
  if (matrices == 1 && each <= 8) tile = 8;
  // Most of many matrices have less than twice their share.
  if (matrices > 1 && each <= 14) tile = each <= 4 ? 8 : 16;
  if (tile > kFewPairs) return tile;
  // Tiles of few pairs keep x whole in shared memory, beside at most 20 KB.
  const int64_t limit = device.info().shared_bytes - (20 << 10);
  const auto bytes = [&](int pairs) { return int64_t{pairs} * (p.k * 2 + 32 * 32); };
  return bytes(tile) <= limit ? tile : bytes(8) <= limit ? 8 : 32;
}

const char* reject_mma(const Product& p, bool rounded) {
  if (!in_whole_units(p)) return "columns or addresses of the weight are odd";
  if (p.x_dtype == DType::kF32) return "f32 activations";
  const auto even = [](int64_t bytes) { return bytes % 16 == 0; };
  if (p.x_dtype == DType::kBF16 &&
      !(even(reinterpret_cast<intptr_t>(p.x)) && even(p.x_stride * 2) && even(p.x_part * 2)))
    return "rows of x are not 16-byte aligned";
  for (const WeightStack* w = p.weight; w < p.weight + (p.stack_is_part ? 1 : p.parts); ++w) {
    if (w->format == WeightFormat::kF32 || w->format == WeightFormat::kF16)
      return "f32 and f16 weights";
    const bool exact = w->format != WeightFormat::kKbit && !w->scale_is_f32;
    if (!exact && !rounded) return "weights are no bf16 numbers";
  }
  return nullptr;
}

void run_mma_product(Device& device, const Product& p) {
  if (p.n == 0) return;
  const bool kbit = p.weight[0].format == WeightFormat::kKbit;
  if (p.tile_pairs <= kFewPairs)
    return kbit ? product::few_kbit(device, p) : product::few_plain(device, p);
  kbit ? product::mma_kbit(device, p) : product::mma_plain(device, p);
}

}  // namespace dsv4
