#include <algorithm>
#include <charconv>

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

std::string default_device(const std::vector<bool>& usable) {
  const auto first = std::find(usable.begin(), usable.end(), true);
  if (first == usable.end()) return "cpu";
  return first == usable.begin() ? "cuda" : fmt::format("cuda:{}", first - usable.begin());
}

const std::string& default_device() {
  static const std::string device = default_device(usable_gpus());
  return device;
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

DeviceMemory device_memory([[maybe_unused]] const Device* device) {
#if DSV4_CUDA
  if (device != nullptr)
    return {.total_bytes = device->info().total_bytes, .free_bytes = device->free_bytes()};
#endif
  return {};
}

#if !DSV4_CUDA
void move_to_device(Model& model, std::shared_ptr<Device>, const LoadProgress&, int64_t, Context) {
  fail(ErrorCode::kUnsupported, "{} cannot move: this program was built without CUDA",
       model.checkpoint().folder());
}
#endif

}  // namespace dsv4
