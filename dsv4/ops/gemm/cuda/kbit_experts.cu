#include "dsv4/ops/gemm/cuda/kbit_experts.h"

#include "dsv4/ops/gemm/cuda/kbit_experts/call.cuh"

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

}  // namespace dsv4::gemm::kbit_experts
