#include "dsv4/ops/parts/linear/linear.h"

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/gemm/gemm.h"

namespace dsv4::linear_kernel {

// More than 64 tokens under kOfficial where bits must not depend on the batch, FP8 weights times
// codes and BF16 times bf16, on Hopper: the bits of sm90_few (gemm/sm90/large_m).
DSV4_IMPL(LinearArgs, sm90_many)
// Up to 64 tokens under kOfficial, FP8 and BF16 weights, on Hopper (gemm/sm90/small_m); Q8 of x in
// the same kernel for up to 4 tokens, f16 of x for up to 8, with more in a kernel of its own. FP8
// products are added as by cublaslt_fp8.
DSV4_IMPL(LinearArgs, sm90_few)
// 9 or 17 to 512 rows of bf16 or f16 under kOfficial times k-bit weights with any codebook, on
// Hopper (gemm/sm90/kbit_wide), rounded as by cuda_kbit. Sums are added in another order than
// there.
DSV4_IMPL(LinearArgs, sm90_kbit_wide)
// Up to 64 rows of bf16 or f16 under kOfficial times k-bit weights with any codebook
// (gemm/cuda/kbit_stream). The codebook and its product with the scale are rounded to the type of
// x.
DSV4_IMPL(LinearArgs, cuda_kbit)
// k4-e4m3 and k5-e4m3 weights, read as bit planes by the same kernel, for up to 8 tokens.
DSV4_IMPL(LinearArgs, sm90_few_kbit)
// E4M3 x with its scales times FP8 blocks, on Hopper.
DSV4_IMPL(LinearArgs, cublaslt_fp8)
// bf16 x times BF16 weights, 16 tokens or more.
DSV4_IMPL(LinearArgs, cublaslt)
// bf16 x times FP8 blocks, which are written to the workspace as bf16 first (exact, because their
// scales are powers of two); 96 tokens or more.
DSV4_IMPL(LinearArgs, cublaslt_dequantized)
// Tensor cores under kOfficial, for more than a few tokens. Weights whose values are no numbers of
// the operands' type (bf16, or f16 where x is) are rounded to it.
DSV4_IMPL(LinearArgs, cuda_mma)
// f32 arithmetic for any format, shape and alignment.
DSV4_IMPL(LinearArgs, cuda)
// bf16 or f16 x times k-bit weights, which are written to the workspace in the type of x first; 256
// tokens or more.
DSV4_IMPL(LinearArgs, cublaslt_any)
DSV4_IMPL(LinearArgs, cpu)
// quantize_x: quantize_q8, then the call without it.
DSV4_IMPL(LinearArgs, parts)

namespace cuda_kbit {
double rounding(const LinearArgs& args);
}
namespace sm90_kbit_wide {
double rounding(const LinearArgs& args);
}
namespace cuda_mma {
double rounding(const LinearArgs& args);
}
namespace cublaslt_any {
double rounding(const LinearArgs& args);
}
namespace cpu {
HostBytes host_bytes(const LinearArgs& args);
}

#if DSV4_CUDA
// Tensor cores align the addends of a step to the largest one and truncate below its last kept bit.
// With bf16 operands, whose products are exact, each step loses about 2^-23 of the running f32 sum,
// always in one direction; 2^-20 of the magnitudes covers k = 16384. With FP8 operands Hopper keeps
// 13 fractional bits within the 128 columns of a scale.
constexpr double kLtBf16Rounding = 0x1p-20, kLtFp8Rounding = 0x1p-12;
#endif

constexpr Impl<LinearArgs> kLinear[] = {
#if DSV4_CUDA
    {"sm90_many", Arch::kSm90, true, sm90_many::reject, sm90_many::run, kLtFp8Rounding},
    {"sm90_few", Arch::kSm90, true, sm90_few::reject, sm90_few::run, kLtFp8Rounding},
    {"sm90_kbit_wide", Arch::kSm90, true, sm90_kbit_wide::reject, sm90_kbit_wide::run,
     sm90_kbit_wide::rounding},
    {"cuda_kbit", Arch::kCuda, true, cuda_kbit::reject, cuda_kbit::run, cuda_kbit::rounding},
    {"sm90_few_kbit", Arch::kSm90, true, sm90_few_kbit::reject, sm90_few_kbit::run, kLtFp8Rounding},
    {"cublaslt_fp8", Arch::kSm90, false, cublaslt_fp8::reject, cublaslt_fp8::run, kLtFp8Rounding},
    {"cublaslt", Arch::kCuda, false, cublaslt::reject, cublaslt::run, kLtBf16Rounding},
    {"cublaslt_dequantized", Arch::kCuda, false, cublaslt_dequantized::reject,
     cublaslt_dequantized::run, kLtBf16Rounding},
    {"cublaslt_any", Arch::kCuda, false, cublaslt_any::reject, cublaslt_any::run,
     cublaslt_any::rounding},
    {"cuda_mma", Arch::kCuda, false, cuda_mma::reject, cuda_mma::run, cuda_mma::rounding},
    {"cuda", Arch::kCuda, true, cuda::reject, cuda::run},
    {"parts", Arch::kCuda, true, parts::reject, parts::run, kLtFp8Rounding},
#endif
    {"cpu", Arch::kCpu, true, cpu::reject, cpu::run, 0, cpu::host_bytes},
    {"parts", Arch::kCpu, true, parts::reject, parts::run},
};

}  // namespace dsv4::linear_kernel

namespace dsv4 {
namespace {

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
  expect("x", args.x, {DType::kF32, DType::kBF16, DType::kF16, DType::kE4M3}, {t, k});
  if (args.x.dtype == DType::kE4M3) {
    expect("x_scale", args.x_scale, {DType::kE8M0},
           {t, groups * ceil_div(args.weight.k, kActivationGroup)});
  }
  if (args.quantize_x) {
    DSV4_CHECK(args.x.dtype != DType::kE4M3, "x: {} cannot be quantized again", to_string(args.x));
    DSV4_CHECK(args.x.dtype != DType::kF16, "x: {} is not quantized", to_string(args.x));
    DSV4_CHECK(groups == 1 || args.weight.k % kActivationGroup == 0,
               "x: groups of {} columns cut {}-column scale groups", args.weight.k,
               kActivationGroup);
  }
  expect("out", args.out, {DType::kF32, DType::kBF16, DType::kF16}, {t, n});
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

constinit const Op<LinearArgs> linear{"linear", linear_kernel::kLinear, check, cost};

}  // namespace dsv4
