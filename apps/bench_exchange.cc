// dsv4 bench exchange: what one exchange of values between the ranks of a model costs, in a
// captured graph (comm/device_ranks.h).

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/common.h"
#include "apps/json_report.h"
#include "apps/rank_process.h"
#include "dsv4/base/error.h"
#include "dsv4/base/size_text.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/plan/probe.h"
#if DSV4_CUDA
#include "dsv4/comm/device_ranks.h"
#include "dsv4/comm/rank_processes.h"
#include "dsv4/device/current_device.h"
#include "dsv4/device/graph.h"
#include "dsv4/tensor/buffer.h"
#endif

namespace dsv4::apps {
namespace {

using Json = nlohmann::ordered_json;

struct ExchangeBenchOptions {
  std::string device = "cuda";
  std::vector<int64_t> kib = {1, 4, 16, 64, 128, 1024};
  bool json = false;
};

#if DSV4_CUDA
constexpr int64_t kExchanges = 200, kRuns = 21;  // of a graph; the median run counts
constexpr int64_t kWindow = int64_t{8} << 20;

// The ranks of this process: all, or one.
struct OwnRanks {
  std::vector<int> ranks;  // of the devices
  Devices devices;
  std::shared_ptr<RankProcesses> processes;  // null: all ranks are in this one
  std::unique_ptr<DeviceRanks> threads;
  DeviceRanks* exchanges = nullptr;

  // Lets all ranks begin together.
  void meet() const {
    if (processes != nullptr) processes->swap({}, "bench");
  }
};

OwnRanks own_ranks(const std::string& device, const Devices& devices) {
  constexpr std::chrono::seconds kLimit{10};
  OwnRanks own{.devices = devices};
  if (const auto self = rank_of_process(device)) {
    own.ranks = {self->id.rank};
    own.processes = meet_ranks(*self, "bench exchange", device, devices);
    own.exchanges = &device_exchanges(*own.processes, *devices.front(), kLimit);
    return own;
  }
  std::vector<Device*> pointers;
  for (const auto& one : devices) {
    own.ranks.push_back(static_cast<int>(pointers.size()));
    pointers.push_back(one.get());
  }
  own.threads = std::make_unique<DeviceRanks>(pointers, kWindow, kLimit);
  own.exchanges = own.threads.get();
  return own;
}

// Seconds of one exchange after which every rank has all `bytes`, of which each had an equal part.
double seconds_of_exchange(const OwnRanks& own, int64_t bytes) {
  DeviceRanks& group = *own.exchanges;
  const int64_t columns = bytes / item_bytes(DType::kBF16);
  const ColumnEnds ends = column_ends(group.world(), columns, 64);
  std::vector<Buffer> all;
  std::vector<Graph> graphs;
  for (size_t i = 0; i < own.ranks.size(); ++i) {
    Device& device = *own.devices[i];
    make_current(device);
    all.emplace_back(DType::kBF16, std::initializer_list<int64_t>{1, columns}, device.memory());
    graphs.push_back(Graph::capture(device, [&] {
      for (int64_t number = 0; number < kExchanges; ++number) {
        const Gathered one[] = {{all.back().view(), ends}};
        group.rank(own.ranks[i]).gather(one, {"bench", number});
      }
    }));
  }
  std::vector<double> times;
  for (int64_t run = 0; run < kRuns; ++run) {
    own.meet();
    const auto begin = std::chrono::steady_clock::now();
    for (size_t i = 0; i < graphs.size(); ++i) {
      make_current(*own.devices[i]);
      graphs[i].launch(*own.devices[i]);
    }
    for (const auto& device : own.devices) {
      make_current(*device);
      device->wait();
    }
    times.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    group.check();
  }
  own.meet();  // the graphs and tensors of no rank go while another one waits for them
  std::ranges::sort(times);
  return times[times.size() / 2] / kExchanges;
}

Json measure(const ExchangeBenchOptions& options, const Devices& devices) {
  const OwnRanks own = own_ranks(options.device, devices);
  Json rows = Json::array();
  for (const int64_t kib : options.kib)
    rows.push_back({{"bytes", kib << 10}, {"us", 1e6 * seconds_of_exchange(own, kib << 10)}});
  make_current(*devices.front());
  const std::unique_ptr<Probe> probe = make_probe(devices.front().get());
  const Json report = {{"device", probe->name()},
                       {"driver", probe->driver()},
                       {"ranks", own.exchanges->world()},
                       {"processes", own.processes != nullptr},
                       {"results", rows}};
  // Windows of the others are closed before any rank frees its own.
  if (own.processes != nullptr && own.processes->id().rank != 0 && !own.processes->next())
    own.processes->leave();
  return report;
}
#endif

void bench_exchange(const ExchangeBenchOptions& options) {
  const Devices devices = open_devices(options.device);
  if (num_ranks(options.device) < 2 || devices.front() == nullptr)
    fail(ErrorCode::kUnsupported, "bench exchange needs several GPUs: give --gpus {}", 2);
#if DSV4_CUDA
  const Json report = measure(options, devices);
  if (follows(options.device)) return;
  if (options.json) return fmt::print("{}\n", dump(report));
  fmt::print("{} ranks, {}\n", report["ranks"].get<int>(), report["device"].get<std::string>());
  for (const Json& row : report["results"])
    fmt::print("{:>10}: {:7.2f} us\n", size_text(row["bytes"].get<int64_t>()),
               row["us"].get<double>());
#endif
}

}  // namespace

void add_bench_exchange(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand(
      "exchange", "What an exchange of values between the GPUs of a model costs in a step");
  command->footer(
      "Example: dsv4 bench exchange --gpus 2 --json\n"
      "After an exchange every GPU has all bytes of a tensor of which each had an equal part.\n"
      "Several ranks on one GPU take turns and cannot be measured.");
  auto options = std::make_shared<ExchangeBenchOptions>();
  add_device(*command, options->device);
  command->add_option("--kib", options->kib, "KiB of a tensor, a list")
      ->delimiter(',')
      ->check(integer_in(1, 4096))
      ->option_text("1,4,16,64,128,1024");
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options, &action] { action = [options] { bench_exchange(*options); }; });
}

}  // namespace dsv4::apps
