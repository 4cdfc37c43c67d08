// quantize_kbit: CODEBOOK/bits/choice over 16 M Gaussian bf16 weights; weights per second and core.

#include <omp.h>

#include "bench/op_bench.h"
#include "bench/roofline.h"
#include "dsv4/ops/kbit/quantize_kbit_case.h"
#include "dsv4/tensor/buffer.h"
#include "tests/harness/fill.h"

namespace dsv4 {
namespace {

constexpr int64_t kRows = 4096, kColumns = 4096;

const Buffer& weights() {
  static const Buffer buffer = [] {
    Buffer x(DType::kBF16, {kRows, kColumns});
    Rng rng(1);
    test::fill_normal(x, rng, 0.02);
    return x;
  }();
  return buffer;
}

void quantize_kbit_bench(benchmark::State& state, Codebook (*codebook)(int), ScaleChoice choice,
                         bool weighted) {
  const int bits = static_cast<int>(state.range(0));
  bench::Arena arena;
  const TensorView importance = arena.input(DType::kF32, {kColumns});
  for (int64_t i = 0; i < kColumns; ++i) importance.as<float>()[i] = static_cast<float>(1 + i % 7);
  QuantizeKbitArgs args = test::quantize_kbit_of(arena, weights(), codebook(bits), choice);
  if (weighted) args.importance = importance;
  for (auto _ : state) quantize_kbit({}, args);
  bench::report(state, quantize_kbit.cost(args));
  state.counters["Mweights/s/core"] =
      benchmark::Counter(1e-6 * kRows * kColumns / omp_get_max_threads(),
                         benchmark::Counter::kIsIterationInvariantRate);
}

void bits(benchmark::internal::Benchmark* b) {
  b->DenseRange(kMinKbit, kMaxKbit)->ArgName("bits")->UseRealTime();
  b->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(quantize_kbit_bench, nf_reference, nf_codebook, ScaleChoice::kReference, false)
    ->Apply(bits);
BENCHMARK_CAPTURE(quantize_kbit_bench, nf_searched, nf_codebook, ScaleChoice::kSearched, false)
    ->Apply(bits);
BENCHMARK_CAPTURE(quantize_kbit_bench, bnf_searched, bnf_codebook, ScaleChoice::kSearched, false)
    ->Apply(bits);
BENCHMARK_CAPTURE(quantize_kbit_bench, nf_searched_importance, nf_codebook, ScaleChoice::kSearched,
                  true)
    ->Apply(bits);

}  // namespace
}  // namespace dsv4
