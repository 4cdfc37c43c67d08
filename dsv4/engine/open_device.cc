#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "dsv4/base/env.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/device/shared_gpu.h"
#include "dsv4/engine/device_memory.h"
#include "dsv4/engine/device_model.h"
#if DSV4_CUDA
#include "dsv4/device/cublas_lt.h"
#include "dsv4/device/current_device.h"
#endif

namespace dsv4 {
namespace {

// "cuda" -> 0, "cuda:3" -> 3, anything else -> -1
int cuda_ordinal(const std::string& name) {
  if (name == "cuda") return 0;
  const std::string prefix = "cuda:";
  int ordinal = -1;
  if (name.rfind(prefix, 0) != 0) return -1;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, ordinal);
  return error == std::errc() && stop == end ? ordinal : -1;
}

std::optional<int> whole_number(std::string_view text) {
  int number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || number < 0) return std::nullopt;
  return number;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> names(1);
  for (const char c : list) {
    if (c == ',') {
      names.emplace_back();
    } else {
      names.back() += c;
    }
  }
  return names;
}

constexpr const char* kProcesses = "processes";
constexpr int kMaxRanks = 64, kMaxGpuRanks = 8;
constexpr int kMaxSharing = 4;  // ranks of a GPU, for tests: more were never run

bool is_gpu(const std::string& name) {
  return cuda_ordinal(name) >= 0;
}

// A list of GPUs, or of "cpu".
void check_ranks(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name != "cpu" && !is_gpu(name))
      fail(ErrorCode::kBadInput, "no device '{}' in a list of {}", quotable(name), names.size());
  }
  const auto gpus = std::ranges::count_if(names, is_gpu);
  if (gpus != 0 && gpus != std::ssize(names))
    fail(ErrorCode::kUnsupported,
         "a model over {} devices, of which {} are GPUs: want GPUs alone, "
         "or cpu alone",
         names.size(), gpus);
  std::map<int, int> sharing;
  for (const std::string& name : names) {
    if (is_gpu(name) && ++sharing[cuda_ordinal(name)] > kMaxSharing)
      fail(ErrorCode::kUnsupported,
           "more than {} ranks on {}: want other GPUs, as ranks that share one are for tests",
           kMaxSharing, name);
  }
  const int most = gpus > 0 ? kMaxGpuRanks : kMaxRanks;
  if (std::ssize(names) > most)
    fail(ErrorCode::kBadInput, "{} ranks, want at most {}", names.size(), most);
}

}  // namespace

void prepare_shared_gpus() {
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  share_gpus();
#if DSV4_CUDA
  lt_refuse_all();
#endif
}

namespace {

void prepare_if_shared(const std::vector<std::string>& names) {
  std::set<int> gpus;
  for (const std::string& name : names)
    if (is_gpu(name) && !gpus.insert(cuda_ordinal(name)).second) return prepare_shared_gpus();
}

// Says of each GPU whether it is new enough.
std::vector<bool> usable_gpus() {
  std::vector<bool> usable;
#if DSV4_CUDA
  try {
    for (const DeviceInfo& info : list_devices())
      usable.push_back(info.major * 10 + info.minor >= kMinMajor * 10 + kMinMinor);
  } catch (const Error&) {  // `--device cuda` says what is wrong
  }
#endif
  return usable;
}

// For --gpus all.
int all_gpus() {
#if DSV4_CUDA
  if (const auto count = static_cast<int>(list_devices().size()); count > 0) return count;
#endif
  fail(ErrorCode::kUnsupported, "--gpus all: no CUDA GPU here");
}

// What stands after the colon of "processes:cpu" or "processes:2,3", "" for "processes"; none for
// other names.
std::optional<std::string> places_of_processes(const std::string& device) {
  const std::string name = kProcesses;
  if (device == name) return "";
  if (!device.starts_with(name + ":")) return std::nullopt;
  return device.substr(name.size() + 1);
}

// The device of this process: of a list its own place, else the GPU of its local rank. A launcher
// may show each process one GPU alone, which is then number 0 for all of them.
std::string device_of_process(const std::string& places, const LaunchedRank& self) {
  if (places == "cpu") return places;
  if (places.empty()) {
    const bool alone = !env("CUDA_VISIBLE_DEVICES").empty() && usable_gpus().size() == 1;
    return fmt::format("cuda:{}", alone ? 0 : self.local_rank);
  }
  const std::vector<std::string> list = split(places);
  if (static_cast<int>(list.size()) != self.id.world)
    fail(ErrorCode::kBadInput, "--gpus {}:{}: {} GPUs for {} processes", kProcesses, places,
         list.size(), self.id.world);
  return "cuda:" + list[static_cast<size_t>(self.local_rank)];
}

}  // namespace

std::optional<LaunchedRank> rank_of_process(const std::string& device) {
  const auto places = places_of_processes(device);
  if (!places) return std::nullopt;
  const LaunchedRank self = launched_rank([](const char* name) { return env(name); });
  if (*places != "cpu" && self.id.world > kMaxGpuRanks)
    fail(ErrorCode::kUnsupported, "--gpus {}: {} processes, at most {} share a model", device,
         self.id.world, kMaxGpuRanks);
  return self;
}

int num_ranks(const std::string& device) {
  if (const auto self = rank_of_process(device)) return self->id.world;
  return static_cast<int>(split(device).size());
}

std::string devices_of_gpus(const std::string& gpus) {
  const auto bad = [&]() {
    fail(ErrorCode::kBadInput,
         "--gpus '{}': want a number of GPUs, all, a list of GPUs such as 0,2, cpu,cpu, processes, "
         "processes:0,2 or processes:cpu",
         quotable(gpus));
  };
  if (const auto places = places_of_processes(gpus)) {
    if (places->empty() ? gpus != kProcesses : *places != "cpu")
      for (const std::string& name : split(*places))
        if (!whole_number(name)) bad();
    return gpus;
  }
  std::vector<std::string> names;
  if (const auto number = gpus == "all" ? all_gpus() : whole_number(gpus)) {
    if (*number == 0) bad();
    if (*number > kMaxGpuRanks)
      fail(ErrorCode::kUnsupported, "--gpus {}: {} GPUs, at most {} share a model", gpus, *number,
           kMaxGpuRanks);
    for (int i = 0; i < *number; ++i) names.push_back(std::to_string(i));
  } else {
    names = split(gpus);
  }
  std::string devices;
  for (std::string& name : names) {
    if (name != "cpu" && !whole_number(name)) bad();
    if (name != "cpu") name = "cuda:" + name;
    devices += devices.empty() ? name : "," + name;
  }
  prepare_if_shared(names);
  return devices;
}

std::string default_device(const std::vector<bool>& usable) {
  const auto first = std::find(usable.begin(), usable.end(), true);
  if (first == usable.end()) return "cpu";
  return first == usable.begin() ? "cuda" : fmt::format("cuda:{}", first - usable.begin());
}

const std::string& default_device() {
  static const std::string device = default_device(usable_gpus());
  return device;
}

bool is_cpu(const std::string& device) {
  return (device == "auto" ? default_device() : device) == "cpu";
}

bool on_cpu(const std::string& device) {
  if (const auto places = places_of_processes(device)) return *places == "cpu";
  return std::ranges::all_of(split(device), is_cpu);
}

std::shared_ptr<Device> open_device(const std::string& name) {
  if (name == "auto") return open_device(default_device());
  if (name == "cpu") return nullptr;
  const int ordinal = cuda_ordinal(name);
  if (ordinal < 0)
    fail(ErrorCode::kBadInput, "no device '{}': want auto, cpu, cuda or cuda:N", quotable(name));
#if DSV4_CUDA
  return std::make_shared<Device>(ordinal);
#else
  fail(ErrorCode::kUnsupported,
       "--device {}: this program was built without CUDA (build it with `cmake --preset cuda`)",
       name);
#endif
}

Devices open_devices(const std::string& list) {
  if (const auto places = places_of_processes(list))
    return {open_device(device_of_process(*places, *rank_of_process(list)))};
  const std::vector<std::string> names = split(list);
  if (names.size() == 1) return {open_device(list)};
  check_ranks(names);
  if (!is_gpu(names[0])) return {nullptr};
  prepare_if_shared(names);
  Devices devices;
  for (const std::string& name : names) devices.push_back(open_device(name));
#if DSV4_CUDA
  const DeviceInfo& first = devices.front()->info();
  for (const auto& device : devices) {
    const DeviceInfo& info = device->info();
    if (info.name != first.name || info.num_sms != first.num_sms)
      fail(ErrorCode::kUnsupported,
           "GPUs {} ({}) and {} ({}): ranks agree bit for bit on GPUs of one kind only",
           first.ordinal, first.name, info.ordinal, info.name);
  }
  make_current(*devices.front());
#endif
  return devices;
}

MemoryUse device_memory([[maybe_unused]] const Device* device) {
#if DSV4_CUDA
  if (device != nullptr)
    return {.total_bytes = device->info().total_bytes, .free_bytes = device->free_bytes()};
#endif
  return {};
}

#if !DSV4_CUDA
void move_to_devices(Model& model, std::span<const std::shared_ptr<Device>>, const LoadProgress&,
                     int64_t, Context, const ExpertMemory*) {
  fail(ErrorCode::kUnsupported, "{} cannot move: this program was built without CUDA",
       model.checkpoint().folder());
}
void move_to_device(Model& model, std::shared_ptr<Device>, const LoadProgress&, int64_t, Context,
                    const ExpertMemory*) {
  fail(ErrorCode::kUnsupported, "{} cannot move: this program was built without CUDA",
       model.checkpoint().folder());
}
#endif

}  // namespace dsv4
