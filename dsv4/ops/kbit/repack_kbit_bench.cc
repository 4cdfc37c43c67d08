// repack_kbit: flat to tiled and back, 4096 x 4096 weights that exceed the caches, K = 2..5; and
// import_mxfp4 of as many.

#include "dsv4/ops/kbit/repack_kbit.h"

#include "bench/roofline.h"
#include "bench/weight_pool.h"
#include "dsv4/ops/kbit/import_mxfp4.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

constexpr int64_t kN = 4096, kK = 4096;

void count_weights(benchmark::State& state) {
  state.counters["Mweights/s"] =
      benchmark::Counter(1e-6 * kN * kK, benchmark::Counter::kIsIterationInvariantRate);
}

void repack_kbit_bench(benchmark::State& state, Repack direction) {
  const int bits = static_cast<int>(state.range(0));
  bench::WeightPool pool;
  const bool to_tiled = direction == Repack::kToTiled;
  const Buffer planes(DType::kI32, {kK / 64, kN, 2 * bits}), scales(DType::kU8, {kK / 64, kN, 2});
  const auto next = [&](bool flat, ConstTensorView* p, ConstTensorView* s) {
    const WeightView w = pool.next(WeightFormat::kKbit, kN, kK, bits);
    *p = flat ? w.data : w.data.reshape({kK / 64, kN, 2 * bits});
    *s = flat ? w.scale : w.scale.reshape({kK / 64, kN, 2});
  };
  RepackKbitArgs args{.direction = direction, .bits = bits};
  args.planes_out = to_tiled ? planes.view() : planes.view().reshape({kN, kK / 32 * bits});
  args.scales_out = to_tiled ? scales.view() : scales.view().reshape({kN, kK / 32});
  for (auto _ : state) {
    next(to_tiled, &args.planes_in, &args.scales_in);
    repack_kbit({}, args);
  }
  bench::report(state, repack_kbit.cost(args));
  count_weights(state);
}

void import_mxfp4_bench(benchmark::State& state) {
  bench::WeightPool pool;
  const Buffer planes(DType::kI32, {kN, kK / 32 * 4}), scales(DType::kU8, {kN, kK / 32});
  // The pool's scale bytes are s0111xxx, two distant ranges; this keeps one, as in a checkpoint.
  const Buffer near(DType::kE8M0, {kN, kK / 32});
  std::fill_n(near.as<uint8_t>(), near.view().numel(), uint8_t{120});
  ImportMxfp4Args args{.planes = planes, .scales = scales};
  for (auto _ : state) {
    args.weight = pool.next(WeightFormat::kMxfp4, kN, kK);
    args.weight.scale = near;
    if (!import_mxfp4(args).fits()) state.SkipWithError("does not fit");
  }
  bench::report(
      state, {.bytes = static_cast<double>(2 * args.weight.data.bytes() + planes.view().bytes())});
  count_weights(state);
}

void bits(benchmark::internal::Benchmark* b) {
  b->DenseRange(2, 5)->ArgName("bits")->UseRealTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(repack_kbit_bench, to_tiled, Repack::kToTiled)->Apply(bits);
BENCHMARK_CAPTURE(repack_kbit_bench, to_flat, Repack::kToFlat)->Apply(bits);
BENCHMARK(import_mxfp4_bench)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace dsv4
