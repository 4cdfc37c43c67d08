// dsv4_bench_cpu [--benchmark_filter=REGEX] [--benchmark_out=FILE --benchmark_out_format=json] ...
//
// Measures the machine's roofs first, so that every benchmark can say how near it comes.

#include <fmt/format.h>
#include <omp.h>

#include <cstdio>
#include <string>

#include "bench/roofline.h"
#include "dsv4/base/error.h"

int main(int argc, char** argv) try {
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
