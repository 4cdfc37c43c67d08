// dequantize: FORMAT (k-bit by bits) of 4096 x 4096 to f32 and bf16. A new matrix each iteration,
// so weights come from memory.

#include "dsv4/ops/dequantize/dequantize.h"

#include "bench/roofline.h"
#include "bench/weight_pool.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

constexpr int64_t kN = 4096, kK = 4096;

void dequantize_bench(benchmark::State& state, WeightFormat format, int bits, DType dtype) {
  bench::WeightPool pool;
  const Buffer out(dtype, {kN, kK});
  DequantizeArgs args{.weight = pool.next(format, kN, kK, bits), .out = out};
  dequantize({}, args);  // the pool and the threads exist now
  for (auto _ : state) {
    args.weight = pool.next(format, kN, kK, bits);
    dequantize({}, args);
  }
  bench::report(state, dequantize_cost(args));
  state.counters["Mweights/s"] =
      benchmark::Counter(1e-6 * kN * kK, benchmark::Counter::kIsIterationInvariantRate);
}

void unit(benchmark::internal::Benchmark* b) {
  b->UseRealTime()->Unit(benchmark::kMillisecond);
}

constexpr auto kBit = WeightFormat::kKbit;
BENCHMARK_CAPTURE(dequantize_bench, kbit2_bf16, kBit, 2, DType::kBF16)->Apply(unit);
BENCHMARK_CAPTURE(dequantize_bench, kbit3_bf16, kBit, 3, DType::kBF16)->Apply(unit);
BENCHMARK_CAPTURE(dequantize_bench, kbit4_bf16, kBit, 4, DType::kBF16)->Apply(unit);
BENCHMARK_CAPTURE(dequantize_bench, kbit5_bf16, kBit, 5, DType::kBF16)->Apply(unit);
BENCHMARK_CAPTURE(dequantize_bench, kbit4_f16, kBit, 4, DType::kF16)->Apply(unit);
BENCHMARK_CAPTURE(dequantize_bench, kbit4_f32, kBit, 4, DType::kF32)->Apply(unit);
BENCHMARK_CAPTURE(dequantize_bench, mxfp4_bf16, WeightFormat::kMxfp4, 0, DType::kBF16)->Apply(unit);
BENCHMARK_CAPTURE(dequantize_bench, nvfp4_bf16, WeightFormat::kNvfp4, 0, DType::kBF16)->Apply(unit);
BENCHMARK_CAPTURE(dequantize_bench, fp8_bf16, WeightFormat::kFp8Block, 0, DType::kBF16)
    ->Apply(unit);
BENCHMARK_CAPTURE(dequantize_bench, bf16_bf16, WeightFormat::kBF16, 0, DType::kBF16)->Apply(unit);

}  // namespace
}  // namespace dsv4
