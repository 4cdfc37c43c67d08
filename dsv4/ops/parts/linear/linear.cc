#include "dsv4/ops/parts/linear/linear.h"

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/gemm/quant_gemm/quant_gemm.h"
#include "dsv4/ops/parts/linear/linear_impls.h"

namespace dsv4 {
namespace {

constexpr Impl<LinearArgs> kLinear[] = {
#if DSV4_CUDA
    {"sm90_few", Arch::kSm90, true, linear_sm90_few_reject, linear_sm90_few, kLtFp8Rounding},
    {"sm90_few_kbit", Arch::kSm90, true, linear_sm90_few_kbit_reject, linear_sm90_few_kbit,
     kLtFp8Rounding},
    {"cublaslt_fp8", Arch::kSm90, false, linear_cublaslt_fp8_reject, linear_cublaslt_fp8,
     kLtFp8Rounding},
    {"cublaslt", Arch::kCuda, false, linear_cublaslt_reject, linear_cublaslt, kLtBf16Rounding},
    {"cublaslt_dequantized", Arch::kCuda, false, linear_cublaslt_dequantized_reject,
     linear_cublaslt_dequantized, kLtBf16Rounding},
    {"cuda_mma", Arch::kCuda, false, linear_cuda_mma_reject, linear_cuda_mma},
    {"cuda_mma_rounded", Arch::kCuda, false, linear_cuda_mma_rounded_reject, linear_cuda_mma,
     0x1p-9},
    {"cuda", Arch::kCuda, true, linear_reject_quantize, linear_cuda},
    {"parts", Arch::kCuda, true, linear_parts_reject, linear_parts, kLtFp8Rounding},
#endif
    {"cpu", Arch::kCpu, true, linear_reject_quantize, linear_cpu, 0, linear_cpu_bytes},
    {"parts", Arch::kCpu, true, linear_parts_reject, linear_parts},
};

void check(const LinearArgs& args) {
  check("weight", args.weight);
  const int64_t groups = args.groups;
  DSV4_CHECK(groups >= 1 && args.weight.n % groups == 0, "weight: {} rows in {} groups",
             args.weight.n, groups);
  DSV4_CHECK(groups == 1 || args.weight.format != WeightFormat::kFp8Block ||
                 args.weight.n / groups % kFp8BlockSize == 0,
             "weight: {} rows a group cut {}-row scale blocks", args.weight.n / groups,
             kFp8BlockSize);
  Dim t("t"), n("n", args.weight.n), k("k", groups * args.weight.k);
  expect("x", args.x, {DType::kF32, DType::kBF16, DType::kE4M3}, {t, k});
  if (args.x.dtype == DType::kE4M3) {
    expect("x_scale", args.x_scale, {DType::kE8M0},
           {t, groups * ceil_div(args.weight.k, kActivationGroup)});
  }
  if (args.quantize_x) {
    DSV4_CHECK(args.x.dtype != DType::kE4M3, "x: {} cannot be quantized again", to_string(args.x));
    DSV4_CHECK(groups == 1 || args.weight.k % kActivationGroup == 0,
               "x: groups of {} columns cut {}-column scale groups", args.weight.k,
               kActivationGroup);
  }
  expect("out", args.out, {DType::kF32, DType::kBF16}, {t, n});
}

Cost cost(const LinearArgs& args) {
  const int64_t t = args.x.dim(0);
  const int64_t scales = args.x_scale.empty() ? 0 : args.x_scale.bytes();
  const auto weight = static_cast<double>(args.weight.bytes());
  return {
      .bytes = weight + static_cast<double>(args.x.bytes() + scales + args.out.bytes()),
      .flops = 2.0 * static_cast<double>(t) * static_cast<double>(args.weight.n * args.weight.k),
      .weight_bytes = weight};
}

}  // namespace

constinit const Op<LinearArgs> linear{"linear", kLinear, check, cost};

}  // namespace dsv4
