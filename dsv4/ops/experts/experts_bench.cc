// experts: FORMAT/t with the shapes of V4-Flash (d 4096, inner 2048, 6 of 256 experts; 64 of them
// here, 860 MB in 4 bits). Each token chooses its experts at random, anew each iteration.

#include "dsv4/ops/experts/experts.h"

#include "bench/roofline.h"
#include "bench/weight_pool.h"
#include "dsv4/base/rng.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

constexpr int64_t kWidth = 4096, kInner = 2048, kChosen = 6, kExperts = 64;

void experts_bench(benchmark::State& state, WeightFormat format, int bits = 0) {
  const int64_t t = state.range(0);
  bench::WeightPool pool;
  std::vector<ExpertWeights> table(kExperts);
  for (ExpertWeights& expert : table) {
    expert = {.w1 = pool.next(format, kInner, kWidth, bits),
              .w3 = pool.next(format, kInner, kWidth, bits),
              .w2 = pool.next(format, kWidth, kInner, bits)};
  }
  const Buffer x(DType::kBF16, {t, kWidth}), acc(DType::kF32, {t, kWidth});
  const Buffer ids(DType::kI32, {t, kChosen}), weights(DType::kF32, {t, kChosen});
  std::fill_n(x.as<uint16_t>(), t * kWidth, uint16_t{0x3c00});
  std::fill_n(weights.as<float>(), t * kChosen, 0.25f);
  const ExpertsArgs args{
      .x = x, .table = table, .experts = ids, .weights = weights, .swiglu_limit = 10.f, .acc = acc};
  Rng rng(1);
  Cost total;
  experts({}, args);
  for (auto _ : state) {
    for (int64_t i = 0; i < t * kChosen; ++i) {
      ids.as<int32_t>()[i] = static_cast<int32_t>(rng.below(kExperts));
    }
    experts({}, args);
    const Cost cost = experts_cost(args);
    total.bytes += cost.bytes, total.flops += cost.flops;
  }
  const auto iterations = static_cast<double>(state.iterations());
  bench::report(state, {.bytes = total.bytes / iterations, .flops = total.flops / iterations});
}

void tokens(benchmark::internal::Benchmark* b) {
  b->Arg(1)->Arg(4)->Arg(64)->Arg(512);
  b->ArgName("t")->UseRealTime()->Unit(benchmark::kMicrosecond);
}

BENCHMARK_CAPTURE(experts_bench, mxfp4, WeightFormat::kMxfp4)->Apply(tokens);
BENCHMARK_CAPTURE(experts_bench, nvfp4, WeightFormat::kNvfp4)->Apply(tokens);
BENCHMARK_CAPTURE(experts_bench, k2, WeightFormat::kKbit, 2)->Apply(tokens);
BENCHMARK_CAPTURE(experts_bench, k3, WeightFormat::kKbit, 3)->Apply(tokens);
BENCHMARK_CAPTURE(experts_bench, k4, WeightFormat::kKbit, 4)->Apply(tokens);
BENCHMARK_CAPTURE(experts_bench, k5, WeightFormat::kKbit, 5)->Apply(tokens);

}  // namespace
}  // namespace dsv4
