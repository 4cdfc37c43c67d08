#include "dsv4/ops/gemm/cuda/problem.h"

#include <algorithm>
#include <span>

#include "dsv4/formats/codebook.h"
#include "dsv4/ops/gemm/cuda/kernels.h"

namespace dsv4::gemm::cuda {
namespace {

// An upper bound of what a CTA of the GEMV kernels needs: x padded by a half, and fixed arrays.
int64_t gemv_shared_bytes(const Problem& p, int tile) {
  constexpr int64_t kFixed = 8 << 10;
  const int64_t x = int64_t{tile} * p.k * (is_staged_as_f32(p) ? 4 : 2);
  return kFixed + (tile == 2 ? x + x / 2 : x + x / 4);
}

// Whether values of this format are in the range of f16.
bool fits_f16(WeightFormat format) {
  return format == WeightFormat::kKbit || format == WeightFormat::kNvfp4 ||
         format == WeightFormat::kF16;
}

// The entries of p.weight that are in use.
std::span<const StridedWeight> weights(const Problem& p) {
  return {p.weight, p.projection_is_matrix ? size_t{1} : static_cast<size_t>(p.projections)};
}

}  // namespace

bool in_whole_units(const Problem& p) {
  const auto used = weights(p);
  return std::all_of(used.begin(), used.end(), [&](const auto& w) {
    const auto [columns, align] = unit_of(w);
    return p.k % columns == 0 && reinterpret_cast<uintptr_t>(w.data) % align == 0 &&
           w.row_bytes % align == 0 && w.matrix_bytes % align == 0;
  });
}

StridedWeight single_matrix(const WeightView& w) {
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

int gemv_tile(const Device& device, const Problem& p, int64_t matrices) {
  const double each = static_cast<double>(p.m) / static_cast<double>(matrices);
  // When rows choose among many matrices at random, an average of a quarter row leaves most
  // matrices with one row at most, and so on.
  const double most = matrices == 1 ? each : 4 * each;
  int tile = is_staged_as_f32(p) ? (most <= 1 ? 1 : 4)
             : most <= 1         ? 1
             : most <= 2         ? 2
             : most <= 4         ? 4
                                 : 8;
  while (tile > 1 && gemv_shared_bytes(p, tile) > device.info().max_smem_per_block) tile /= 2;
  if (is_staged_as_f32(p) && tile == 2) tile = 1;
  return tile;
}

void run_gemv(Device& device, const Problem& p) {
  if (p.n == 0) return;
  if (!in_whole_units(p) || gemv_shared_bytes(p, p.tile_m) > device.info().max_smem_per_block)
    return gemv_any(device, p);
  with_decoder(p.weight[0], [&]<class Decode>(Decoder<Decode>) { gemv<Decode>(device, p); });
}

int mma_tile(const Device& device, const Problem& p, int64_t matrices) {
  const int64_t each = p.m / matrices;
  int tile = each <= 40 ? 32 : each <= 80 ? 64 : 128;
  if (matrices == 1 && each <= 8) tile = 8;
  // Most of many matrices have less than twice the average number of rows.
  if (matrices > 1 && each <= 14) tile = each <= 4 ? 8 : 16;
  if (tile > kSmallM) return tile;
  // The small-M kernels keep all of x in shared memory, beside at most 20 KB.
  const int64_t limit = device.info().max_smem_per_block - (20 << 10);
  const auto bytes = [&](int rows) { return int64_t{rows} * (p.k * 2 + 32 * 32); };
  return bytes(tile) <= limit ? tile : bytes(8) <= limit ? 8 : 32;
}

const char* reject_mma(const Problem& p) {
  if (!in_whole_units(p)) return "columns or addresses of the weight are odd";
  if (p.x_dtype == DType::kF32) return "f32 activations";
  const auto even = [](int64_t bytes) { return bytes % 16 == 0; };
  const bool is_f16 = p.x_dtype == DType::kF16;
  if ((p.x_dtype == DType::kBF16 || is_f16) &&
      !(even(reinterpret_cast<intptr_t>(p.x)) && even(p.x_stride * 2) &&
        even(p.x_projection_stride * 2)))
    return "rows of x are not 16-byte aligned";
  for (const StridedWeight& w : weights(p)) {
    if (w.format == WeightFormat::kF32) return "f32 weights";
    if (is_f16 && !fits_f16(w.format)) return "weights that f16 may not hold";
    if (!is_f16 && w.format == WeightFormat::kF16) return "f16 weights";
  }
  return nullptr;
}

void run_mma(Device& device, const Problem& p) {
  if (p.n == 0) return;
  with_decoder(p.weight[0], [&]<class Decode>(Decoder<Decode>) {
    p.tile_m <= kSmallM ? small_m<Decode>(device, p) : mma<Decode>(device, p);
  });
}

}  // namespace dsv4::gemm::cuda
