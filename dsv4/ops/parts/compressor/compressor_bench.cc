#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/parts/compressor/compressor.h"

namespace dsv4 {
namespace {

// One sequence that appends `t` tokens at position `start`.
struct CompressorCase {
  bench::Tensor kv, gate, ape, cu_tokens, starts, slots, state, out;
  CompressorArgs args;

  CompressorCase(StateLayout layout, int64_t start, int64_t t)
      : kv(DType::kF32, {t, layout.columns()}),
        gate(DType::kF32, {t, layout.columns()}),
        ape(DType::kF32, {layout.ratio, layout.columns()}),
        cu_tokens(DType::kI32, {2}),
        starts(DType::kI32, {1}),
        slots(DType::kI32, {1}),
        state(DType::kF32, {1, layout.floats()}),
        out(DType::kBF16, {num_closed_entries(start, t, layout.ratio), layout.width}) {
    for (const bench::Tensor* tensor : {&kv, &gate, &ape}) bench::fill(*tensor);
    cu_tokens.as<int32_t>()[1] = static_cast<int32_t>(t);
    starts.as<int32_t>()[0] = static_cast<int32_t>(start);
    args = {.layout = layout,
            .kv = kv,
            .gate = gate,
            .ape = ape,
            .cu_tokens = cu_tokens,
            .start = starts,
            .state_slots = slots,
            .state = state,
            .out = out};
  }
};

void add(StateLayout layout, int64_t start, int64_t t) {
  bench::register_impls<CompressorArgs>(
      fmt::format("compressor/r{} d{} {} tokens", layout.ratio, layout.width, t), compressor,
      [=] { return std::make_shared<CompressorCase>(layout, start, t); });
}

const bool kRegistered = [] {
  for (const StateLayout layout :
       {StateLayout{4, 512, true}, StateLayout{4, 128, true}, StateLayout{128, 512}}) {
    add(layout, 0, 4096);
    add(layout, 127, 1);  // the token that closes a block
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
