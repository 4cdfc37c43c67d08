#include "dsv4/ops/gemm/sm90/kbit_rows.h"

#include "dsv4/device/alignment.h"
#include "dsv4/ops/gemm/sm90/kbit_rows/call.cuh"

namespace dsv4::gemm::kbit_rows {

// Where an H200 was measured slower than cuda, cuda_mma or cuda_pairs (docs/kernels/kbit.md).
static const char* reject_slower(const Shape& s) {
  if (s.tokens > 0) return nullptr;  // tune
  constexpr int64_t kManyRows = 16, kFewRows = 8, kLongRows = 4096;
  constexpr int64_t kLarge = int64_t{1} << 26;  // weights
  if (s.bits == 5) return "others are faster for K = 5";
  if (s.tokens > kManyRows) return "others are faster for more than 16 rows";
  if ((s.tokens == 1 || s.tokens > kFewRows) && s.n * s.k < kLarge)
    return "others are faster for small weights";
  if (s.bits == 4 && s.tokens > 4 && s.tokens <= kFewRows && s.k > kLongRows)
    return "others are faster for long rows of K = 4";
  return nullptr;
}

const char* reject(const Context& context, const Product& p) {
  constexpr int64_t kAlign = 16;
  if (context.device->info().major != 9) return "for Hopper";
  if (context.numerics == Numerics::kExact) return "exact numerics";
  if (p.weight.format != WeightFormat::kKbit) return "for k-bit weights";
  if (p.x.dtype != DType::kBF16 && p.x.dtype != DType::kF16) return "for bf16 and f16 activations";
  if (p.x.dim(0) > kMaxTokens) return "for up to 64 rows";
  if (!rows_on(p.x, kAlign)) return "rows of x are not 16-byte aligned";
  if (!rows_on(p.weight.data, kAlign)) return "rows of the weight are not 16-byte aligned";
  if (p.weight.n * p.weight.scale.row_stride() >= int64_t{1} << 32)
    return "scales have more than 4 GB";
  if (p.weight.n == 0 || p.weight.k == 0 || p.x.dim(0) == 0) return nullptr;
  if (const char* why = reject_slower(shape_of(p)); why != nullptr && context.force_impl.empty())
    return why;
  const Plan plan = make_plan(shape_of(p), context.device->info().num_sms);
  constexpr int kMaxPasses = 4;  // of the weight, from L2
  if (plan.cells * kMaxPasses < p.x.dim(0)) return "rows of x are too long";
  return nullptr;
}

void run(const Context& context, const Product& p) {
  Device& device = *context.device;
  if (p.weight.n == 0 || p.x.dim(0) == 0 || device.is_dry_run()) return;
  const Plan plan = make_plan(shape_of(p), device.info().num_sms);
  const Params params = make_params(p, plan, make_tma_map);
  constexpr decltype(&launch_kbit_rows<2, bf16>) kRun[][2] = {
      {launch_kbit_rows<2, bf16>, launch_kbit_rows<2, f16>},
      {launch_kbit_rows<3, bf16>, launch_kbit_rows<3, f16>},
      {launch_kbit_rows<4, bf16>, launch_kbit_rows<4, f16>},
      {launch_kbit_rows<5, bf16>, launch_kbit_rows<5, f16>}};
  kRun[p.weight.bits - kMinKbit][p.x.dtype == DType::kF16](device, params);
}

}  // namespace dsv4::gemm::kbit_rows
