#include "dsv4/ops/gemm/sm90/kbit_wide.h"

#include "dsv4/device/alignment.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/device/shared_gpu.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/ops/gemm/sm90/kbit_wide/call.cuh"
#include "dsv4/ops/gemm/sm90/kbit_wide/order_x.cuh"

namespace dsv4::gemm::kbit_wide {

const char* reject(const Context& context, const Product& p) {
  constexpr int64_t kAlign = 16, kMaxIndex = int64_t{1} << 31, kMaxTiles = 65535;
  if (context.numerics == Numerics::kExact) return "exact numerics";
  if (gpus_are_shared()) return "ranks share a GPU";
  if (p.weight.format != WeightFormat::kKbit) return "for k-bit weights";
  if (p.x.dtype != DType::kBF16 && p.x.dtype != DType::kF16) return "for bf16 and f16 activations";
  if (p.weight.n == 0 || p.weight.k == 0) return "for weights that are not empty";
  if (p.weight.k % kScaleColumns != 0) return "columns are no multiple of 512";
  if (!rows_on(p.x, kAlign)) return "rows of x are not 16-byte aligned";
  if (!rows_on(p.weight.data, kAlign) || !rows_on(p.weight.scale, kAlign))
    return "rows of codes or scales are not 16-byte aligned";
  if (p.weight.n >= kMaxIndex || p.weight.k >= kMaxIndex) return "2^31 rows or columns";
  if (p.x.dim(0) > kMaxTiles * kOrderTokens) return "too many rows of x for a grid";
  if (sm90::kMaxSmem > context.device->info().max_smem_per_block) return "too little shared memory";
  return nullptr;
}

void run(const Context& context, const Product& p) {
  Device& device = *context.device;
  const int64_t tokens = p.x.dim(0), units = p.weight.k / kUnit;
  if (tokens == 0) return;
  const Scratch::Scope scope(device.workspace());
  const TensorView ordered_x = device.workspace().take(p.x.dtype, {units, tokens, kUnit});
  if (device.is_dry_run()) return;
  // Without early start: CTAs so small would gather on the few SMs that the kernel before leaves
  // free, 4 of 132 after a kbit_wide of 128 CTAs. These alone would then put all of x in order,
  // which took 39 us with 256 rows of 8192 columns.
  launch(device, "kbit_wide_x", order_x_kernel,
         {.grid = units, .block = kOrderThreads, .grid_y = ceil_div(tokens, int64_t{kOrderTokens})},
         p.x.as<uint16_t>(), p.x.row_stride(), static_cast<int>(tokens), ordered_x.as<uint16_t>());
  const Plan plan = make_plan(p.weight.n, p.weight.k, tokens, device.info().num_sms);
  const Params params = make_params(p, plan, ordered_x, make_tma_map);
  constexpr decltype(&launch_kbit_wide<2, bf16>) kRun[][2] = {
      {launch_kbit_wide<2, bf16>, launch_kbit_wide<2, f16>},
      {launch_kbit_wide<3, bf16>, launch_kbit_wide<3, f16>},
      {launch_kbit_wide<4, bf16>, launch_kbit_wide<4, f16>},
      {launch_kbit_wide<5, bf16>, launch_kbit_wide<5, f16>}};
  kRun[p.weight.bits - kMinKbit][p.x.dtype == DType::kF16](device, plan, params);
}

}  // namespace dsv4::gemm::kbit_wide
