#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/engine/device_memory.h"
#include "dsv4/engine/device_model.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
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

constexpr int kMaxRanks = 64;

[[noreturn]] void refuse_gpus(const std::string& what) {
  fail(ErrorCode::kUnsupported,
       "{}: this version runs on one GPU (--device cuda:N); a model over several is computed on "
       "the CPU alone (--gpus cpu,cpu), and `dsv4 plan --gpus 2xh200` says what would fit",
       what);
}

// All of them are "cpu".
void check_ranks(const std::vector<std::string>& names) {
  if (std::ranges::any_of(names, [](const std::string& name) { return cuda_ordinal(name) >= 0; }))
    refuse_gpus(fmt::format("a model over {} devices with a GPU", names.size()));
  for (const std::string& name : names) {
    if (name != "cpu")
      fail(ErrorCode::kBadInput, "no device '{}' in a list of {}", quotable(name), names.size());
  }
  if (std::ssize(names) > kMaxRanks)
    fail(ErrorCode::kBadInput, "{} ranks, want at most {}", names.size(), kMaxRanks);
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

}  // namespace

int num_ranks(const std::string& device) {
  return static_cast<int>(split(device).size());
}

std::string devices_of_gpus(const std::string& gpus) {
  const auto bad = [&]() {
    fail(ErrorCode::kBadInput,
         "--gpus '{}': want a number of GPUs, all, a list of GPUs such as 0,2, or cpu,cpu",
         quotable(gpus));
  };
  if (gpus == "all") refuse_gpus("--gpus all");
  if (const auto number = whole_number(gpus)) {
    if (*number == 0) bad();
    if (*number > 1) refuse_gpus("--gpus " + gpus);
    return "cuda:0";
  }
  std::string devices;
  for (const std::string& name : split(gpus)) {
    if (name != "cpu" && !whole_number(name)) bad();
    devices += devices.empty() ? "" : ",";
    devices += name == "cpu" ? name : "cuda:" + name;
  }
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

std::shared_ptr<Device> open_device(const std::string& name) {
  if (name == "auto") return open_device(default_device());
  if (name == "cpu") return nullptr;
  if (const std::vector<std::string> names = split(name); names.size() > 1) {
    check_ranks(names);
    return nullptr;
  }
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

DeviceMemory device_memory([[maybe_unused]] const Device* device) {
#if DSV4_CUDA
  if (device != nullptr)
    return {.total_bytes = device->info().total_bytes, .free_bytes = device->free_bytes()};
#endif
  return {};
}

#if !DSV4_CUDA
void move_to_device(Model& model, std::shared_ptr<Device>, const LoadProgress&, int64_t, Context,
                    const ExpertMemory*) {
  fail(ErrorCode::kUnsupported, "{} cannot move: this program was built without CUDA",
       model.checkpoint().folder());
}
#endif

}  // namespace dsv4
