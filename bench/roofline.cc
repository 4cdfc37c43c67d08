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

// Sum of `n` words, a multiple of 8 vectors.
uint32_t ReadAll(const uint32_t* words, int64_t n) {
  const hn::ScalableTag<uint32_t> u32;
  const auto step = static_cast<int64_t>(hn::Lanes(u32));
  auto a = hn::Zero(u32), b = a, c = a, d = a;
  for (int64_t i = 0; i < n; i += 4 * step) {
    a = hn::Add(a, hn::Load(u32, words + i));
    b = hn::Add(b, hn::Load(u32, words + i + step));
    c = hn::Add(c, hn::Load(u32, words + i + 2 * step));
    d = hn::Add(d, hn::Load(u32, words + i + 3 * step));
  }
  return hn::GetLane(hn::SumOfLanes(u32, hn::Add(hn::Add(a, b), hn::Add(c, d))));
}

// Ten chains of multiply-adds keep two units of latency four or five busy. Returns the flops run.
double MultiplyAdd(int64_t rounds, float* sink) {
  const hn::ScalableTag<float> f32;
  const auto m = hn::Set(f32, 0.999f);
  auto a = hn::Iota(f32, 0), b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a, j = a;
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

constexpr int kRepeats = 8;

template <class Work>
double best_seconds(const Work& work) {
  double best = 1e30;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  return best;
}

double read_bytes_per_s() {
  constexpr int64_t kBlock = int64_t{1} << 20, kBlocks = 1024;  // 1 GiB in blocks of 1 MiB
  const Buffer memory(DType::kU8, {kBlocks * kBlock});
#pragma omp parallel for
  for (int64_t b = 0; b < kBlocks; ++b) {
    std::memset(memory.as<uint8_t>() + b * kBlock, static_cast<int>(b), kBlock);
  }
  uint32_t sum = 0;
  const double seconds = best_seconds([&] {
#pragma omp parallel for reduction(+ : sum)
    for (int64_t b = 0; b < kBlocks; ++b) {
      const auto* words = reinterpret_cast<const uint32_t*>(memory.as<uint8_t>() + b * kBlock);
      sum += HWY_DYNAMIC_DISPATCH(ReadAll)(words, kBlock / 4);
    }
  });
  benchmark::DoNotOptimize(sum);
  return static_cast<double>(kBlocks * kBlock) / seconds;
}

double fma_flops_per_s() {
  double flops = 0;
  const double seconds = best_seconds([&] {
    flops = 0;
#pragma omp parallel reduction(+ : flops)
    {
      float sink = 0;
      flops += HWY_DYNAMIC_DISPATCH(MultiplyAdd)(10'000'000, &sink);
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
