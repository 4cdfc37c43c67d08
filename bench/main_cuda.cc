// dsv4_bench_cuda [--filter REGEX] [--deterministic] [-o FILE]
//
// Times every CUDA implementation of every X_bench.cc in graphs, after the peaks of the GPU, and
// writes one JSON object: device, peaks, and per implementation and shape the time of a call and
// its shares of the peaks.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "bench/gpu_timing.h"
#include "bench/managed_memory.h"
#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/device/error.h"
#include "dsv4/plan/probe.h"

namespace dsv4::bench {
namespace {

using Json = nlohmann::ordered_json;

ManagedMemory& managed() {
  static ManagedMemory memory;
  return memory;
}

double megahertz(int ordinal, cudaDeviceAttr attribute) {
  int kilohertz = 0;
  cuda_check(cudaDeviceGetAttribute(&kilohertz, attribute, ordinal), "cudaDeviceGetAttribute");
  return kilohertz * 1e-3;
}

Json describe(const Device& device, const Roofs& roofs) {
  const DeviceInfo& info = device.info();
  return {{"device", info.name},
          {"compute_capability", fmt::format("{}.{}", info.major, info.minor)},
          {"driver", driver_version()},
          {"max_clock_mhz", megahertz(info.ordinal, cudaDevAttrClockRate)},
          {"memory_clock_mhz", megahertz(info.ordinal, cudaDevAttrMemoryClockRate)},
          {"copy_gb_per_s", roofs.copy_bytes_per_s * 1e-9},
          {"matrix_tflop_per_s", roofs.matrix_flops_per_s * 1e-12}};
}

// Moves the tensors to the GPU before timing.
Json time_entry(const Context& context, const Entry& entry, const Roofs& roofs) {
  Device& device = *context.device;
  const size_t slash = entry.name.find('/');
  Json result{{"op", entry.name.substr(0, slash)},
              {"impl", entry.impl},
              {"shape", entry.name.substr(slash + 1)}};
  const auto session = entry.open();
  if (const char* reason = session->reject(context)) {
    result["skipped"] = reason;
    return result;
  }
  const Cost cost = mean_cost(*session);  // may read tensors, so call it before they move
  managed().to_device(device.info().ordinal, device.stream());
  device.wait();
  const Timing timing = time_calls(device, [&] {
    session->next();
    session->run(context);
  });
  result["us"] = timing.median_s * 1e6;
  result["fastest_us"] = timing.fastest_s * 1e6;
  result["calls"] = timing.calls;
  result["replays"] = timing.replays;
  result["bytes"] = cost.bytes;
  result["flops"] = cost.flops;
  result["tflop_per_s"] = cost.flops / timing.median_s * 1e-12;
  result["percent_copy"] = 100 * cost.bytes / timing.median_s / roofs.copy_bytes_per_s;
  if (roofs.matrix_flops_per_s > 0)
    result["percent_matrix"] = 100 * cost.flops / timing.median_s / roofs.matrix_flops_per_s;
  return result;
}

void print(const Json& result) {
  const std::string what =
      fmt::format("{}/{}/{}", result["op"].get<std::string>(), result["shape"].get<std::string>(),
                  result["impl"].get<std::string>());
  if (!result.contains("us")) {
    const char* why = result.contains("error") ? "error" : "skipped";
    fmt::print(stderr, "{:<60} {}: {}\n", what, why, result[why].get<std::string>());
    return;
  }
  fmt::print(stderr, "{:<60} {:>10.2f} us {:>7.1f} TFLOP/s {:>6.1f} % copy {:>6.1f} % matrix\n",
             what, result["us"].get<double>(), result["tflop_per_s"].get<double>(),
             result["percent_copy"].get<double>(), result.value("percent_matrix", 0.0));
}

Json run_all(const Context& context, const std::string& filter_text) {
  Device& device = *context.device;
  const std::regex filter(filter_text);
  const Roofs roofs = make_device_probe(device)->measure_roofs();
  Json report = describe(device, roofs);
  if (!filter_text.empty()) report["filter"] = filter_text;
  if (context.need_batch_invariant) report["deterministic"] = true;
  fmt::print(stderr, "{}: copy {:.0f} GB/s, bf16 matrix {:.0f} TFLOP/s\n", device.info().name,
             roofs.copy_bytes_per_s * 1e-9, roofs.matrix_flops_per_s * 1e-12);
  Json& results = report["results"] = Json::array();
  for (const Entry& entry : entries()) {
    if (entry.arch == Arch::kCpu) continue;
    if (!std::regex_search(entry.name + "/" + std::string(entry.impl), filter)) continue;
    try {
      results.push_back(time_entry(context, entry, roofs));
    } catch (const Error& error) {
      // After a failed kernel no further call can run; earlier measurements remain valid.
      results.push_back(
          {{"op", entry.name}, {"impl", entry.impl}, {"shape", ""}, {"error", error.what()}});
      print(results.back());
      return report;
    }
    print(results.back());
  }
  return report;
}

}  // namespace

Memory& memory() {
  return managed();
}

std::vector<int64_t> token_counts() {
  return {1, 32, 4096};
}

bool full_size() {
  return true;
}

}  // namespace dsv4::bench

int main(int argc, char** argv) try {
  CLI::App app("Times the CUDA implementations of all ops; progress on stderr");
  std::string filter, out;
  app.add_option("--filter", filter,
                 "Only op/shape/implementation names that match this regular expression");
  bool deterministic = false;
  app.add_flag("--deterministic", deterministic,
               "Calls whose bits must not depend on the batch, as with the engine's option");
  app.add_option("-o,--out", out, "JSON file (default: stdout)");
  CLI11_PARSE(app, argc, argv);
  dsv4::Device device(0);
  const dsv4::Context context{.need_batch_invariant = deterministic, .device = &device};
  const std::string text = dsv4::bench::run_all(context, filter).dump(1) + "\n";
  if (out.empty()) {
    fmt::print("{}", text);
  } else {
    std::ofstream(out) << text;
  }
  return 0;
} catch (const dsv4::Error& error) {
  fmt::print(stderr, "dsv4_bench_cuda: {}\n", error.what());
  return 1;
}
