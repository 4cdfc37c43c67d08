#include "dsv4/ops/quant/quant.h"

#include "dsv4/base/bits.h"
#include "dsv4/ops/quant/quant_cpu.h"
#if DSV4_CUDA
#include "dsv4/ops/quant/quant_cuda.h"
#endif

namespace dsv4 {
namespace {

constexpr Row<QuantizeQ8Args> kQuantizeQ8[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<QuantizeQ8Args>, quantize_q8_cuda},
#endif
    {"cpu", Arch::kCpu, true, accept_all<QuantizeQ8Args>, quantize_q8_cpu},
};
constexpr Row<FakeQuantArgs> kFakeQuant[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<FakeQuantArgs>, fake_quant_cuda},
#endif
    {"cpu", Arch::kCpu, true, accept_all<FakeQuantArgs>, fake_quant_cpu},
};
constexpr Row<HadamardArgs> kHadamard[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, hadamard_cuda_reject, hadamard_cuda},
#endif
    {"cpu", Arch::kCpu, true, accept_all<HadamardArgs>, hadamard_cpu},
};

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

}  // namespace

Table<QuantizeQ8Args> quantize_q8_rows() {
  return kQuantizeQ8;
}
Table<FakeQuantArgs> fake_quant_rows() {
  return kFakeQuant;
}
Table<HadamardArgs> hadamard_rows() {
  return kHadamard;
}

Cost quantize_q8_cost(const QuantizeQ8Args& args) {
  return {.bytes = moved(args.x, args.codes) + static_cast<double>(args.scales.bytes()),
          .flops = 3.0 * static_cast<double>(args.x.numel())};
}
Cost fake_quant_cost(const FakeQuantArgs& args) {
  return {.bytes = moved(args.x, args.out), .flops = 4.0 * static_cast<double>(args.x.numel())};
}
Cost hadamard_cost(const HadamardArgs& args) {
  double levels = 1;  // the product with n^-1/2
  for (int64_t n = args.x.dim(-1); n > 1; n /= 2) ++levels;
  return {.bytes = moved(args.x, args.out), .flops = levels * static_cast<double>(args.x.numel())};
}

void quantize_q8(const Context& context, const QuantizeQ8Args& args) {
  check(args);
  choose(quantize_q8_rows(), context, args).run(context, args);
}
void fake_quant(const Context& context, const FakeQuantArgs& args) {
  check(args);
  choose(fake_quant_rows(), context, args).run(context, args);
}
void hadamard(const Context& context, const HadamardArgs& args) {
  check(args);
  choose(hadamard_rows(), context, args).run(context, args);
}

}  // namespace dsv4
