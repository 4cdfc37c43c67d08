#include "bench/roofline.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "dsv4/tensor/buffer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/roofline.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Sum of `n` words, a multiple of 4 vectors. Four streams, like four adjacent matrix rows: a single
// stream reaches about 10% less.
uint32_t ReadAll(const uint32_t* words, int64_t n) {
  const hn::ScalableTag<uint32_t> u32;
  const auto step = static_cast<int64_t>(hn::Lanes(u32));
  const int64_t quarter = n / 4;
  auto a = hn::Zero(u32), b = a, c = a, d = a;
  for (int64_t i = 0; i < quarter; i += step) {
    a = hn::Add(a, hn::Load(u32, words + i));
    b = hn::Add(b, hn::Load(u32, words + i + quarter));
    c = hn::Add(c, hn::Load(u32, words + i + 2 * quarter));
    d = hn::Add(d, hn::Load(u32, words + i + 3 * quarter));
  }
  return hn::GetLane(hn::SumOfLanes(u32, hn::Add(hn::Add(a, b), hn::Add(c, d))));
}

// Ten chains of multiply-adds keep two units with a latency of four or five cycles busy; identical
// chains would be merged by the compiler. Returns the number of flops.
double MultiplyAdd(int64_t rounds, float* sink) {
  const hn::ScalableTag<float> f32;
  const auto m = hn::Set(f32, 0.999f);
  auto a = hn::Iota(f32, 0), b = hn::Iota(f32, 1), c = hn::Iota(f32, 2), d = hn::Iota(f32, 3);
  auto e = hn::Iota(f32, 4), f = hn::Iota(f32, 5), g = hn::Iota(f32, 6), h = hn::Iota(f32, 7);
  auto i = hn::Iota(f32, 8), j = hn::Iota(f32, 9);
  for (int64_t r = 0; r < rounds; ++r) {
    a = hn::MulAdd(a, m, m), b = hn::MulAdd(b, m, m), c = hn::MulAdd(c, m, m);
    d = hn::MulAdd(d, m, m), e = hn::MulAdd(e, m, m), f = hn::MulAdd(f, m, m);
    g = hn::MulAdd(g, m, m), h = hn::MulAdd(h, m, m), i = hn::MulAdd(i, m, m);
    j = hn::MulAdd(j, m, m);
  }
  const auto sum = hn::Add(hn::Add(hn::Add(a, b), hn::Add(c, d)),
                           hn::Add(hn::Add(hn::Add(e, f), hn::Add(g, h)), hn::Add(i, j)));
  *sink = hn::GetLane(hn::SumOfLanes(f32, sum));
  return 20.0 * static_cast<double>(hn::Lanes(f32)) * static_cast<double>(rounds);
}

}  // namespace dsv4::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4::bench {
namespace {

HWY_EXPORT(ReadAll);
HWY_EXPORT(MultiplyAdd);

// Units of work of about a millisecond, shorter than a time slice, so that the best of many is
// undisturbed even on a loaded machine.
template <class Work>
double best_seconds(int repeats, const Work& work) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work(i);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  return best;
}

double read_bytes_per_s() {
  constexpr int64_t kBlock = 65536, kPieceBlocks = 256, kPieces = 64;  // 16 MiB of 1 GiB at a time
  const Buffer memory(DType::kU8, {kPieces * kPieceBlocks * kBlock});
  const auto block = [&](int64_t b) { return memory.as<uint8_t>() + b * kBlock; };
#pragma omp parallel for
  for (int64_t b = 0; b < kPieces * kPieceBlocks; ++b) {
    std::memset(block(b), static_cast<int>(b), kBlock);
  }
  uint32_t sum = 0;
  const double seconds = best_seconds(3 * kPieces, [&](int64_t i) {
#pragma omp parallel for reduction(+ : sum)
    for (int64_t b = 0; b < kPieceBlocks; ++b) {
      const auto* words = reinterpret_cast<const uint32_t*>(block(i % kPieces * kPieceBlocks + b));
      sum += HWY_DYNAMIC_DISPATCH(ReadAll)(words, kBlock / 4);
    }
  });
  benchmark::DoNotOptimize(sum);
  return static_cast<double>(kPieceBlocks * kBlock) / seconds;
}

double fma_flops_per_s() {
  double flops = 0;
  const double seconds = best_seconds(200, [&](int64_t) {
    flops = 0;
#pragma omp parallel reduction(+ : flops)
    {
      float sink = 0;
      flops += HWY_DYNAMIC_DISPATCH(MultiplyAdd)(500'000, &sink);
      benchmark::DoNotOptimize(sink);
    }
  });
  return flops / seconds;
}

}  // namespace

Roofline measure_roofline() {
  return {.read_bytes_per_s = read_bytes_per_s(), .fma_flops_per_s = fma_flops_per_s()};
}

Roofline& roofline() {
  static Roofline roofs;
  return roofs;
}

void report(benchmark::State& state, const Cost& cost) {
  using benchmark::Counter;
  const auto rate = Counter::kIsIterationInvariantRate;
  state.counters["GB/s"] = Counter(cost.bytes * 1e-9, rate);
  state.counters["GFLOP/s"] = Counter(cost.flops * 1e-9, rate);
  state.counters["percent_read"] = Counter(100 * cost.bytes / roofline().read_bytes_per_s, rate);
  state.counters["percent_fma"] = Counter(100 * cost.flops / roofline().fma_flops_per_s, rate);
}

}  // namespace dsv4::bench
#endif  // HWY_ONCE
