// dsv4 bench link: what the link between host memory and a GPU carries (plan/link_probe.h).

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/common.h"
#include "apps/json_report.h"
#include "apps/threads.h"
#include "dsv4/base/error.h"
#include "dsv4/base/size_text.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/plan/link_probe.h"
#include "dsv4/plan/probe.h"

namespace dsv4::apps {
namespace {

using Json = nlohmann::ordered_json;

struct LinkBenchOptions {
  std::string device = "cuda";
  double host_gib = 4, expert_mb = 13.369344;
  int64_t batches = 24;
  std::vector<int> ctas = {1, 2, 4, 8};
  bool json = false;
};

Json report_json(const LinkOptions& options, Device& device, const LinkReport& report) {
  const std::unique_ptr<Probe> probe = make_probe(&device);
  Json rows = Json::array(), launches = Json::array();
  for (const LinkRow& row : report.rows) {
    Json one = {{"what", row.what}};
    if (row.ctas > 0) one["ctas"] = row.ctas;
    const auto add = [&](const char* name, double rate) {
      if (rate > 0) one[name] = rate;
    };
    add("up_bytes_per_s", row.rates.up), add("down_bytes_per_s", row.rates.down);
    add("kernel_bytes_per_s", row.rates.kernel), add("gpu_copy_bytes_per_s", row.rates.device);
    add("host_read_bytes_per_s", row.rates.host_read);
    rows.push_back(std::move(one));
  }
  for (const LinkReport::Launch& launch : report.launches)
    launches.push_back(
        {{"ctas", launch.ctas}, {"experts", launch.experts}, {"us", 1e6 * launch.seconds}});
  return {{"device", probe->name()},
          {"driver", probe->driver()},
          {"expert_bytes", options.expert_bytes},
          {"host_bytes", options.host_bytes},
          {"threads", options.threads},
          {"kernel_runs_here", report.kernels},
          {"results", rows},
          {"launches", launches}};
}

void print_rates(const Json& report) {
  fmt::print("{}, experts of {} in {} of page-locked host memory, {} threads\n",
             report["device"].get<std::string>(), size_text(report["expert_bytes"].get<int64_t>()),
             size_text(report["host_bytes"].get<int64_t>()), report["threads"].get<int>());
  fmt::print("{:<34} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9}  GB/s\n", "", "CTAs", "up", "down",
             "kernel", "in GPU", "threads");
  for (const Json& row : report["results"]) {
    fmt::print("{:<34} {:>5}", row["what"].get<std::string>(),
               row.contains("ctas") ? fmt::format("{}", row["ctas"].get<int>()) : "");
    for (const char* rate : {"up_bytes_per_s", "down_bytes_per_s", "kernel_bytes_per_s",
                             "gpu_copy_bytes_per_s", "host_read_bytes_per_s"})
      fmt::print(" {:>9}",
                 row.contains(rate) ? fmt::format("{:.1f}", 1e-9 * row[rate].get<double>()) : "");
    fmt::print("\n");
  }
  if (!report["kernel_runs_here"].get<bool>())
    fmt::print("the kernel needs a GPU of compute capability 9.0\n");
  for (const Json& launch : report["launches"])
    fmt::print("{} experts by {} CTAs: {:.0f} us\n", launch["experts"].get<int>(),
               launch["ctas"].get<int>(), launch["us"].get<double>());
}

void bench_link(const LinkBenchOptions& options) {
  if (num_ranks(options.device) > 1)
    fail(ErrorCode::kBadInput, "bench link measures the link of one GPU: give one device, not {}",
         options.device);
  const std::shared_ptr<Device> device = open_device(options.device);
  if (device == nullptr)
    fail(ErrorCode::kUnsupported,
         "bench link measures the link between host memory and a GPU: give --device {}", "cuda");
  const LinkOptions how{.expert_bytes = static_cast<int64_t>(1e6 * options.expert_mb),
                        .host_bytes = static_cast<int64_t>(options.host_gib * 0x1p30),
                        .batches = static_cast<int>(options.batches),
                        .threads = num_threads(),
                        .ctas = options.ctas};
  if (how.expert_bytes > how.host_bytes)
    fail(ErrorCode::kBadInput, "--host-gib {}: less than an expert of {} MB", options.host_gib,
         options.expert_mb);
#if DSV4_CUDA
  const LinkReport report = measure_link(*device, how);
  const Json json = report_json(how, *device, report);
  options.json ? fmt::print("{}\n", dump(json)) : print_rates(json);
#else
  (void)report_json, (void)print_rates;
#endif
}

}  // namespace

void add_bench_link(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand(
      "link", "What the link between host memory and a GPU carries: copy engine and kernels");
  command->footer(
      "Example: dsv4 bench link --device cuda --json\n"
      "A GPU is needed. Rates of each kind of traffic alone, and beside others.");
  auto options = std::make_shared<LinkBenchOptions>();
  add_device(*command, options->device);
  add_threads(*command);
  command
      ->add_option("--host-gib", options->host_gib, "GiB of page-locked host memory to copy from")
      ->check(number_in(0.25, 1024))
      ->capture_default_str();
  command->add_option("--expert-mb", options->expert_mb, "MB of an expert, the piece of a copy")
      ->check(number_in(0.01, 256))
      ->capture_default_str();
  command->add_option("--batches", options->batches, "batches of 128 MiB of each kind of traffic")
      ->check(integer_in(2, 10000))
      ->capture_default_str();
  command->add_option("--ctas", options->ctas, "CTAs of the kernel, a list")
      ->delimiter(',')
      ->check(integer_in(1, 1024))
      ->option_text("1,2,4,8");
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options, &action] { action = [options] { bench_link(*options); }; });
}

}  // namespace dsv4::apps
