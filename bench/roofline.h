// The two peaks of this machine, measured in the same run as the benchmarks compared with them:
// read bandwidth of memory and f32 fused multiply-add throughput, both with all OpenMP threads.

#pragma once

#include <benchmark/benchmark.h>

#include "dsv4/ops/op.h"

namespace dsv4::bench {

struct Roofline {
  double read_bytes_per_s = 0;
  double fma_flops_per_s = 0;
};

// The best of many short runs: reading 1 GiB piece by piece, and register-only arithmetic. Takes
// about a second.
Roofline measure_roofline();

// The peaks of this run. main() sets them before any benchmark starts.
Roofline& roofline();

// Adds GB/s, GFLOP/s and their shares of the peaks to a benchmark that used UseRealTime().
void report(benchmark::State& state, const Cost& per_iteration);

}  // namespace dsv4::bench
