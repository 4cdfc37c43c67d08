#include "dsv4/ops/parts/norm/norm.h"

#include "dsv4/base/bits.h"
#include "dsv4/ops/gemm/gemm.h"

namespace dsv4::norm_kernel {

DSV4_IMPL(RmsNormArgs, cpu)
DSV4_IMPL(HeadNormArgs, cpu)
DSV4_IMPL(RmsNormArgs, cuda)
DSV4_IMPL(HeadNormArgs, cuda)

constexpr Impl<RmsNormArgs> kRmsNorm[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<RmsNormArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<RmsNormArgs>, cpu::run},
};

constexpr Impl<HeadNormArgs> kHeadNorm[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<HeadNormArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<HeadNormArgs>, cpu::run},
};

}  // namespace dsv4::norm_kernel

namespace dsv4 {
namespace {

void check(const RmsNormArgs& args) {
  Dim t("t"), d("d");
  expect("x", args.x, {DType::kF32, DType::kBF16}, {t, d});
  expect("weight", args.weight, {DType::kF32, DType::kBF16}, {d});
  expect("out", args.out, {DType::kF32, DType::kBF16}, {t, d});
  if (args.codes.rank == 0) return;
  expect("codes", args.codes, {DType::kE4M3}, {t, d});
  expect("scales", args.scales, {DType::kE8M0}, {t, ceil_div(*d, kActivationGroup)});
}

void check(const HeadNormArgs& args) {
  Dim rows("rows"), d("d");
  expect("x", args.x, {DType::kF32, DType::kBF16}, {rows, d});
  expect("out", args.out, {DType::kF32, DType::kBF16}, {rows, d});
}

Cost cost(const RmsNormArgs& args) {
  const int64_t q8 = args.codes.rank > 0 ? args.codes.bytes() + args.scales.bytes() : 0;
  return {
      .bytes = static_cast<double>(args.x.bytes() + args.weight.bytes() + args.out.bytes() + q8),
      .flops = 4.0 * static_cast<double>(args.x.numel())};
}

Cost cost(const HeadNormArgs& args) {
  return {.bytes = static_cast<double>(args.x.bytes() + args.out.bytes()),
          .flops = 3.0 * static_cast<double>(args.x.numel())};
}

}  // namespace

constinit const Op<RmsNormArgs> rms_norm{"rms_norm", norm_kernel::kRmsNorm, check, cost};

constinit const Op<HeadNormArgs> head_norm{"head_norm", norm_kernel::kHeadNorm, check, cost};

}  // namespace dsv4
