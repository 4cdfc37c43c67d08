// dsv4_bench_cpu [--benchmark_filter=REGEX] [--benchmark_out=FILE --benchmark_out_format=json] ...
//
// Measures the machine's peaks first, so that every benchmark can report its share of them.

#include <fmt/format.h>
#include <omp.h>

#include <cstdio>
#include <string>

#include "bench/op_bench.h"
#include "bench/roofline.h"
#include "dsv4/base/error.h"
#include "dsv4/tensor/scratch.h"

namespace dsv4::bench {

Memory& memory() {
  return host_memory();
}

std::vector<int64_t> token_counts() {
  return {1, 32, 256};
}

bool full_size() {
  return false;
}

namespace {

void run(benchmark::State& state, const Entry& entry) {
  const auto session = entry.open();
  if (const char* reason = session->reject(Context{})) {
    state.SkipWithError(reason);
    return;
  }
  Scratch workspace;
  const Context context{.workspace = &workspace};
  session->run(context);  // first run creates pools, threads and the workspace
  const Cost cost = mean_cost(*session);
  for (auto _ : state) {
    session->next();
    session->run(context);
    benchmark::ClobberMemory();
  }
  report(state, cost);
}

void register_entries() {
  for (const Entry& entry : entries()) {
    if (entry.arch != Arch::kCpu) continue;
    benchmark::RegisterBenchmark((entry.name + "/" + std::string(entry.impl)).c_str(),
                                 [&entry](benchmark::State& state) { run(state, entry); })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
}

}  // namespace
}  // namespace dsv4::bench

int main(int argc, char** argv) try {
  dsv4::bench::register_entries();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  using dsv4::bench::roofline;
  roofline() = dsv4::bench::measure_roofline();
  const std::string read = fmt::format("{:.2f}", roofline().read_bytes_per_s * 1e-9);
  const std::string fma = fmt::format("{:.1f}", roofline().fma_flops_per_s * 1e-9);
  benchmark::AddCustomContext("threads", std::to_string(omp_get_max_threads()));
  benchmark::AddCustomContext("read_GB_per_s", read);
  benchmark::AddCustomContext("fma_GFLOP_per_s", fma);
  fmt::print(stderr, "{} threads, read {} GB/s, f32 FMA {} GFLOP/s\n", omp_get_max_threads(), read,
             fma);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
} catch (const dsv4::Error& error) {
  fmt::print(stderr, "dsv4_bench_cpu: {}\n", error.what());
  return 1;
}
