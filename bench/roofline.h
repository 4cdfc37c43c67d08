// The two roofs of this machine, measured in the same run as the benchmarks that stand below them:
// read bandwidth of memory and f32 fused multiply-add throughput, both with all OpenMP threads.

#pragma once

#include <benchmark/benchmark.h>

#include "dsv4/ops/op.h"

namespace dsv4::bench {

struct Roofline {
  double read_bytes_per_s = 0;
  double fma_flops_per_s = 0;
};

// The best of many short pieces: reading 1 GiB in turn, and register-only arithmetic. Takes about a
// second.
Roofline measure_roofline();

// The roofs of this run. main() sets them before any benchmark starts.
Roofline& roofline();

// Adds GB/s, GFLOP/s and their shares of the roofs to a benchmark that used UseRealTime().
void report(benchmark::State& state, const Cost& per_iteration);

}  // namespace dsv4::bench
