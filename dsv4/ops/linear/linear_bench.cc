// linear: FORMAT/t/n/k. A new matrix each iteration, so weights come from memory.

#include "dsv4/ops/linear/linear.h"

#include "bench/roofline.h"
#include "bench/weight_pool.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

void linear_bench(benchmark::State& state, WeightFormat format, int bits = 0) {
  const int64_t t = state.range(0), n = state.range(1), k = state.range(2);
  bench::WeightPool pool;
  const Buffer x(DType::kBF16, {t, k}), out(DType::kBF16, {t, n});
  std::fill_n(x.as<uint16_t>(), t * k, uint16_t{0x3f80});
  LinearArgs args{.x = x, .weight = pool.next(format, n, k, bits), .out = out};
  linear({}, args);  // the pool and the threads exist now
  for (auto _ : state) {
    args.weight = pool.next(format, n, k, bits);
    linear({}, args);
  }
  bench::report(state, linear_cost(args));
}

// Decode, a small batch, and prefill.
void shapes(benchmark::internal::Benchmark* b) {
  for (const int t : {1, 2, 4, 16}) b->Args({t, 16384, 16384});
  for (const int t : {1, 64, 256}) b->Args({t, 1024, 1024});
  b->Args({256, 4096, 4096});
  b->ArgNames({"t", "n", "k"})->UseRealTime()->Unit(benchmark::kMicrosecond);
}

BENCHMARK_CAPTURE(linear_bench, fp8_block, WeightFormat::kFp8Block)->Apply(shapes);
BENCHMARK_CAPTURE(linear_bench, mxfp4, WeightFormat::kMxfp4)->Apply(shapes);
BENCHMARK_CAPTURE(linear_bench, nvfp4, WeightFormat::kNvfp4)->Apply(shapes);
BENCHMARK_CAPTURE(linear_bench, k2, WeightFormat::kKbit, 2)->Apply(shapes);
BENCHMARK_CAPTURE(linear_bench, k3, WeightFormat::kKbit, 3)->Apply(shapes);
BENCHMARK_CAPTURE(linear_bench, k4, WeightFormat::kKbit, 4)->Apply(shapes);
BENCHMARK_CAPTURE(linear_bench, k5, WeightFormat::kKbit, 5)->Apply(shapes);
BENCHMARK_CAPTURE(linear_bench, bf16, WeightFormat::kBF16)->Apply(shapes);
BENCHMARK_CAPTURE(linear_bench, f16, WeightFormat::kF16)->Apply(shapes);
BENCHMARK_CAPTURE(linear_bench, f32, WeightFormat::kF32)->Apply(shapes);

}  // namespace
}  // namespace dsv4
