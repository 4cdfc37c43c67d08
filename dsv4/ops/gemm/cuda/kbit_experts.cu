#include "dsv4/ops/gemm/cuda/kbit_experts.h"

#include <algorithm>

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/gemm/cuda/kbit_experts/call.cuh"
#include "dsv4/ops/gemm/cuda/kbit_experts/list_rows.cuh"
#include "dsv4/ops/gemm/cuda/strided.h"

namespace dsv4::gemm::kbit_experts {
namespace {

const char* reject_weight(const cuda::Problem& p, const cuda::StridedWeight& w) {
  const cuda::StridedWeight& first = p.weight[0];
  constexpr int64_t kMaxBytes = int64_t{1} << 32;
  if (w.format != WeightFormat::kKbit) return "for k-bit weights";
  if (w.places != nullptr) return "matrices are not evenly spaced";
  if (w.codebook_stride != 0 || w.codebook != first.codebook) return "codebooks differ";
  if (w.bits != first.bits) return "gate and up differ in format";
  if (w.row_bytes != first.row_bytes || w.matrix_bytes != first.matrix_bytes ||
      w.scale_row_bytes != first.scale_row_bytes ||
      w.scale_matrix_bytes != first.scale_matrix_bytes)
    return "gate and up differ in strides";
  // Blocks of rows may reach behind the last one.
  constexpr int64_t kBeyond = kWarps * kGroupTiles * kTileRows;
  if ((p.n + kBeyond) * w.row_bytes >= kMaxBytes) return "codes of a matrix have 4 GB";
  return nullptr;
}

}  // namespace

const char* reject(const Device& device, const cuda::Problem& p) {
  constexpr int64_t kXAlign = 16, kItemBytes = 2;
  if (p.x_dtype != DType::kBF16 && p.x_dtype != DType::kF16) return "for bf16 and f16 activations";
  for (int s = 0; s < p.projections; ++s)
    if (const char* why = reject_weight(p, p.weight[s])) return why;
  if (reinterpret_cast<uintptr_t>(p.x) % kXAlign != 0 || p.x_stride * kItemBytes % kXAlign != 0)
    return "rows of x are not 16-byte aligned";
  if (Layout(p.weight[0].bits).bytes > device.info().max_smem_per_block)
    return "too little shared memory";
  return nullptr;
}

void run(Device& device, const cuda::Problem& p, const GatedStep* gated, bool list_is_older) {
  if (p.n == 0 || p.max_tiles == 0 || device.is_dry_run()) return;
  const Params params = make_params(p, gated, list_is_older, device.info().num_sms);
  constexpr decltype(&launch_kbit_experts<bf16, 2>) kRun[][2] = {
      {launch_kbit_experts<bf16, 2>, launch_kbit_experts<f16, 2>},
      {launch_kbit_experts<bf16, 3>, launch_kbit_experts<f16, 3>},
      {launch_kbit_experts<bf16, 4>, launch_kbit_experts<f16, 4>},
      {launch_kbit_experts<bf16, 5>, launch_kbit_experts<f16, 5>}};
  kRun[p.weight[0].bits - kMinKbit][p.x_dtype == DType::kF16](device, params, p.projections);
}

static auto matrices(std::span<const WeightView> weights) {
  return [=](int64_t i) -> const WeightView& { return weights[static_cast<size_t>(i)]; };
}

const char* reject_sorted(const Device& device, const cuda::Problem& problem,
                          std::span<const WeightView> weights) {
  const int64_t count = std::ssize(weights);
  if (count == 0) return "no experts";
  if (count > kMaxMatrices) return "more than 1024 experts";
  if (const char* why = cuda::reject_strided(count, matrices(weights))) return why;
  cuda::Problem p = problem;
  p.weight[0] = cuda::strided(count, matrices(weights), nullptr);
  return reject(device, p);
}

void run_sorted(Device& device, const cuda::Problem& problem, std::span<const WeightView> weights,
                const int32_t* offsets) {
  const int64_t count = std::ssize(weights), rows = problem.m;
  if (rows == 0) return;
  Scratch& scratch = device.workspace();
  const Scratch::Scope scope(scratch);
  const auto words = [&](int64_t n) { return scratch.take(DType::kI32, {n}).data; };
  cuda::Problem p = problem;
  // Every tile has a row, and all tiles of a matrix but one are full.
  p.tile_m = kTileRowsOfX;
  p.max_tiles = std::min(rows, std::min(count, rows) + rows / kTileRowsOfX);
  const RowList list{.tiles = reinterpret_cast<cuda::RowTile*>(words(3 * p.max_tiles)),
                     .num_tiles = reinterpret_cast<int32_t*>(words(1)),
                     .scale2s = reinterpret_cast<float*>(words(count))};
  Scale2s scale2s{};
  for (size_t i = 0; i < weights.size(); ++i) scale2s.of[i] = weights[i].scale2;
  launch(device, "kbit_list_rows", list_rows_kernel, {.block = kSelectThreads, .pdl = true},
         scale2s, offsets, count, list);
  p.weight[0] = cuda::strided(count, matrices(weights), list.scale2s);
  p.tiles = list.tiles, p.num_tiles = list.num_tiles;
  run(device, p, nullptr, false);
}

}  // namespace dsv4::gemm::kbit_experts
