#include "dsv4/ops/kbit/quantize_fp4.h"

#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/formats/e2m1.h"
#include "dsv4/formats/e4m3.h"

namespace dsv4::quantize_fp4_kernel {

DSV4_IMPL(QuantizeFp4Args, cpu)
// The bits of cpu.
DSV4_IMPL(QuantizeFp4Args, cuda)

constexpr Impl<QuantizeFp4Args> kQuantizeFp4[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<QuantizeFp4Args>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<QuantizeFp4Args>, cpu::run},
};

}  // namespace dsv4::quantize_fp4_kernel

namespace dsv4 {
namespace {

void check(const QuantizeFp4Args& args) {
  const bool mx = args.format == WeightFormat::kMxfp4;
  DSV4_CHECK(mx || args.format == WeightFormat::kNvfp4, "{} is not FP4", name(args.format));
  const int group = mx ? kMxfp4Group : kNvfp4Group;
  Dim n("n"), k("k");
  expect("x", args.x, {DType::kF32}, {n, k});
  DSV4_CHECK(*k % group == 0, "k={} is not a multiple of {}", *k, group);
  expect("pairs", args.pairs, {DType::kU8}, {n, *k / 2});
  expect("scales", args.scales, {mx ? DType::kE8M0 : DType::kE4M3}, {n, *k / group});
  if (!args.importance.empty()) expect("importance", args.importance, {DType::kF32}, {k});
  if (!args.first_bad.empty()) expect("first_bad", args.first_bad, {DType::kI32}, {1});
}

Cost cost(const QuantizeFp4Args& args) {
  const int candidates = !args.searched ? 1 : args.format == WeightFormat::kMxfp4 ? 3 : 17;
  return {.bytes = static_cast<double>(args.x.bytes() + args.pairs.bytes() + args.scales.bytes()),
          .flops = 12. * candidates * static_cast<double>(args.x.numel())};
}

}  // namespace

constinit const Op<QuantizeFp4Args> quantize_fp4{"quantize_fp4", quantize_fp4_kernel::kQuantizeFp4,
                                                 check, cost};

float nvfp4_tensor_scale(float largest_magnitude) {
  const float scale = largest_magnitude / (kE2M1Max * kE4M3Max);
  return std::isnormal(scale) ? std::exp2(std::ceil(std::log2(scale))) : 1.f;
}

}  // namespace dsv4
