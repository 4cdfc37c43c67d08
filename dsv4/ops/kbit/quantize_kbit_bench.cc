// quantize_kbit: CODEBOOK/bits/choice over 16 M Gaussian bf16 weights; weights per second and core.

#include <omp.h>

#include "bench/roofline.h"
#include "dsv4/base/rng.h"
#include "dsv4/formats/float16.h"
#include "dsv4/ops/kbit/quantize_kbit.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

constexpr int64_t kRows = 4096, kColumns = 4096;

const Buffer& weights() {
  static const Buffer buffer = [] {
    Buffer x(DType::kBF16, {kRows, kColumns});
    Rng rng(1);
    for (int64_t i = 0; i < kRows * kColumns; ++i)
      x.as<uint16_t>()[i] = f32_to_bf16(static_cast<float>(0.02 * rng.normal()));
    return x;
  }();
  return buffer;
}

void quantize_kbit_bench(benchmark::State& state, Codebook (*codebook)(int), ScaleChoice choice,
                         bool weighted) {
  const int bits = static_cast<int>(state.range(0));
  const Buffer planes(DType::kI32, {kRows, kColumns / 32 * bits});
  const Buffer scales(DType::kU8, {kRows, kColumns / 32}), importance(DType::kF32, {kColumns});
  for (int64_t i = 0; i < kColumns; ++i) importance.as<float>()[i] = static_cast<float>(1 + i % 7);
  QuantizeKbitArgs args{.x = weights(),
                        .codebook = codebook(bits),
                        .choice = choice,
                        .planes = planes,
                        .scales = scales};
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
