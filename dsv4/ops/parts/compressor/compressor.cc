#include "dsv4/ops/parts/compressor/compressor.h"

#include "dsv4/base/error.h"

namespace dsv4::compressor_kernel {

DSV4_IMPL(CompressorArgs, cuda)
DSV4_IMPL(CompressorArgs, cpu)

constexpr Impl<CompressorArgs> kCompressor[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<CompressorArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<CompressorArgs>, cpu::run},
};

}  // namespace dsv4::compressor_kernel

namespace dsv4 {
namespace {

void check(const CompressorArgs& args) {
  const StateLayout& layout = args.layout;
  DSV4_CHECK(layout.ratio > 0 && layout.width > 0 && layout.spare >= 0,
             "ratio={} width={} spare={}", layout.ratio, layout.width, layout.spare);
  Dim t("t"), b("b"), slots("slots"), entries("entries");
  expect("kv", args.kv, {DType::kF32}, {t, layout.columns()});
  expect("gate", args.gate, {DType::kF32}, {t, layout.columns()});
  expect("ape", args.ape, {DType::kF32}, {layout.ratio, layout.columns()});
  expect("start", args.start, {DType::kI32}, {b});
  expect("cu_tokens", args.cu_tokens, {DType::kI32}, {*b + 1});
  expect("state_slots", args.state_slots, {DType::kI32}, {b});
  expect("state", args.state, {DType::kF32}, {slots, layout.floats()});
  expect("out", args.out, {DType::kF32, DType::kBF16}, {entries, layout.width});
}

// Per token and column: kv and gate are read; the gate is shifted, exponentiated and summed; the
// value is multiplied with its weight. The states add at most one ring per sequence.
Cost cost(const CompressorArgs& args) {
  const int64_t state_bytes = args.state_slots.numel() * args.layout.floats() * 4;
  return {.bytes = static_cast<double>(args.kv.bytes() + args.gate.bytes() + args.ape.bytes() +
                                       args.out.bytes() + 2 * state_bytes),
          .flops = 7.0 * static_cast<double>(args.kv.numel())};
}

}  // namespace

constinit const Op<CompressorArgs> compressor{"compressor", compressor_kernel::kCompressor, check,
                                              cost};

}  // namespace dsv4
