#include "dsv4/ops/gemm/cuda/kbit_stream.h"

#include "dsv4/ops/gemm/cuda/kbit_stream/call.cuh"

namespace dsv4::gemm::kbit_stream {

const char* reject(const Context& context, const Product& p) {
  constexpr int64_t kXAlign = 16, kMaxIndex = int64_t{1} << 31;
  if (context.numerics == Numerics::kExact) return "exact numerics";
  if (p.weight.format != WeightFormat::kKbit) return "for k-bit weights";
  if (p.x.dtype != DType::kBF16 && p.x.dtype != DType::kF16) return "for bf16 and f16 activations";
  if (p.x.dim(0) > kMaxTokens) return "for up to 64 rows";
  // By name up to 64: from 33 rows on the weight is read three times (docs/kernels/kbit.md). Where
  // bits must not depend on the batch, more rows would have to take this kernel, too.
  constexpr int64_t kChosenTokens = 32;
  if (context.force_impl.empty()) {
    if (p.x.dim(0) > kChosenTokens) return "others are faster for more than 32 rows";
    if (context.need_batch_invariant) return "more rows take kernels with other bits";
  }
  if (!rows_on(p.x, kXAlign)) return "rows of x are not 16-byte aligned";
  if ((p.weight.n + kTileRows) * p.weight.data.row_stride() * 4 >= 2 * kMaxIndex)
    return "codes have more than 4 GB";
  if (p.weight.n >= kMaxIndex || p.weight.k >= kMaxIndex) return "2^31 rows or columns";
  if (Layout(p.weight.bits, tile_tokens(p.x.dim(0))).bytes >
      context.device->info().max_smem_per_block)
    return "too little shared memory";
  return nullptr;
}

void run(const Context& context, const Product& p) {
  Device& device = *context.device;
  if (p.weight.n == 0 || p.x.dim(0) == 0 || device.is_dry_run()) return;
  const Params params = make_params(p, device.info().num_sms);
  constexpr decltype(&launch_kbit_stream<2, bf16>) kRun[][2] = {
      {launch_kbit_stream<2, bf16>, launch_kbit_stream<2, f16>},
      {launch_kbit_stream<3, bf16>, launch_kbit_stream<3, f16>},
      {launch_kbit_stream<4, bf16>, launch_kbit_stream<4, f16>},
      {launch_kbit_stream<5, bf16>, launch_kbit_stream<5, f16>}};
  kRun[p.weight.bits - kMinKbit][p.x.dtype == DType::kF16](device, params);
}

}  // namespace dsv4::gemm::kbit_stream
