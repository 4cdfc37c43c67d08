// Benchmarks of ops: one per row of the table and shape, named op/shape/row, with the bytes and
// flops of the op's cost as rates.

#pragma once

#include <benchmark/benchmark.h>

#include <memory>
#include <string>

#include "dsv4/ops/op.h"

namespace dsv4::bench {

// `make()` returns a shared pointer to whatever owns the buffers and has the member `args`; it is
// called when the benchmark starts, so that unselected shapes cost nothing.
template <class Args, class Make>
void register_rows(const std::string& name, Table<Args> table, Cost (*cost)(const Args&),
                   const Make& make) {
  for (const Row<Args>& row : table) {
    if (row.arch != Arch::kCpu) continue;
    const auto run = [&row, cost, make](benchmark::State& state) {
      const auto owner = make();
      const Context context{};
      if (const char* reason = row.reject(context, owner->args)) {
        state.SkipWithError(reason);
        return;
      }
      for (auto _ : state) {
        row.run(context, owner->args);
        benchmark::ClobberMemory();
      }
      const Cost each = cost(owner->args);
      const auto rate = benchmark::Counter::kIsIterationInvariantRate;
      state.counters["bytes/s"] = benchmark::Counter(each.bytes, rate);
      state.counters["flops/s"] = benchmark::Counter(each.flops, rate);
    };
    benchmark::RegisterBenchmark((name + "/" + std::string(row.name)).c_str(), run)->UseRealTime();
  }
}

}  // namespace dsv4::bench
