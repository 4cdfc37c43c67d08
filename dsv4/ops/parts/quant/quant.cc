#include "dsv4/ops/parts/quant/quant.h"

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"

namespace dsv4::quant_kernel {

DSV4_IMPL(QuantizeQ8Args, cuda)
DSV4_IMPL(QuantizeQ8Args, cpu)
DSV4_IMPL(FakeQuantArgs, cuda)
DSV4_IMPL(FakeQuantArgs, cpu)
DSV4_IMPL(HadamardArgs, cuda)
DSV4_IMPL(HadamardArgs, cpu)

constexpr Impl<QuantizeQ8Args> kQuantizeQ8[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, cuda::reject, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, reject_mirrors<QuantizeQ8Args>, cpu::run},
};

constexpr Impl<FakeQuantArgs> kFakeQuant[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<FakeQuantArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<FakeQuantArgs>, cpu::run},
};

constexpr Impl<HadamardArgs> kHadamard[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, cuda::reject, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<HadamardArgs>, cpu::run},
};

}  // namespace dsv4::quant_kernel

namespace dsv4 {
namespace {

void check(const QuantizeQ8Args& args) {
  DSV4_CHECK(args.group > 0, "group={}", args.group);
  Dim t("t"), k("k");
  expect("x", args.x, {DType::kF32, DType::kBF16}, {t, k});
  expect("codes", args.codes, {DType::kE4M3}, {t, k});
  expect("scales", args.scales, {DType::kE8M0}, {t, ceil_div(*k, args.group)});
}

void check(const FakeQuantArgs& args) {
  DSV4_CHECK(args.group > 0, "group={}", args.group);
  Dim t("t"), k("k");
  expect("x", args.x, {DType::kF32, DType::kBF16}, {t, k});
  expect("out", args.out, {DType::kF32, DType::kBF16}, {t, k});
  DSV4_CHECK(args.format == FakeQuantFormat::kS8 || *k % args.group == 0,
             "k={} is not a multiple of group={}", *k, args.group);
}

void check(const HadamardArgs& args) {
  Dim t("t"), n("n");
  expect("x", args.x, {DType::kF32, DType::kBF16}, {t, n});
  expect("out", args.out, {DType::kF32, DType::kBF16}, {t, n});
  DSV4_CHECK(is_pow2(*n), "n={}", *n);
}

double moved(const ConstTensorView& a, const ConstTensorView& b) {
  return static_cast<double>(a.bytes() + b.bytes());
}

Cost cost(const QuantizeQ8Args& args) {
  return {.bytes = moved(args.x, args.codes) + static_cast<double>(args.scales.bytes()),
          .flops = 3.0 * static_cast<double>(args.x.numel())};
}

Cost cost(const FakeQuantArgs& args) {
  return {.bytes = moved(args.x, args.out), .flops = 4.0 * static_cast<double>(args.x.numel())};
}

Cost cost(const HadamardArgs& args) {
  double levels = 1;  // the multiplication with n^-1/2
  for (int64_t n = args.x.dim(-1); n > 1; n /= 2) ++levels;
  return {.bytes = moved(args.x, args.out), .flops = levels * static_cast<double>(args.x.numel())};
}

}  // namespace

constinit const Op<QuantizeQ8Args> quantize_q8{"quantize_q8", quant_kernel::kQuantizeQ8, check,
                                               cost};
constinit const Op<FakeQuantArgs> fake_quant{"fake_quant", quant_kernel::kFakeQuant, check, cost};
constinit const Op<HadamardArgs> hadamard{"hadamard", quant_kernel::kHadamard, check, cost};

}  // namespace dsv4
