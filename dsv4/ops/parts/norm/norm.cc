#include "dsv4/ops/parts/norm/norm.h"

#include "dsv4/ops/parts/norm/norm_impls.h"

namespace dsv4 {
namespace {

constexpr Impl<RmsNormArgs> kRmsNorm[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<RmsNormArgs>, rms_norm_cuda},
#endif
    {"cpu", Arch::kCpu, true, accept_all<RmsNormArgs>, rms_norm_cpu},
};

constexpr Impl<HeadNormArgs> kHeadNorm[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<HeadNormArgs>, head_norm_cuda},
#endif
    {"cpu", Arch::kCpu, true, accept_all<HeadNormArgs>, head_norm_cpu},
};

void check(const RmsNormArgs& args) {
  Dim t("t"), d("d");
  expect("x", args.x, {DType::kF32, DType::kBF16}, {t, d});
  expect("weight", args.weight, {DType::kF32, DType::kBF16}, {d});
  expect("out", args.out, {DType::kF32, DType::kBF16}, {t, d});
}

void check(const HeadNormArgs& args) {
  Dim rows("rows"), d("d");
  expect("x", args.x, {DType::kF32, DType::kBF16}, {rows, d});
  expect("out", args.out, {DType::kF32, DType::kBF16}, {rows, d});
}

Cost cost(const RmsNormArgs& args) {
  return {.bytes = static_cast<double>(args.x.bytes() + args.weight.bytes() + args.out.bytes()),
          .flops = 4.0 * static_cast<double>(args.x.numel())};
}

Cost cost(const HeadNormArgs& args) {
  return {.bytes = static_cast<double>(args.x.bytes() + args.out.bytes()),
          .flops = 3.0 * static_cast<double>(args.x.numel())};
}

}  // namespace

constinit const Op<RmsNormArgs> rms_norm{"rms_norm", kRmsNorm, check, cost};

constinit const Op<HeadNormArgs> head_norm{"head_norm", kHeadNorm, check, cost};

}  // namespace dsv4
