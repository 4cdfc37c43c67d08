#include "apps/inspect.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/common.h"
#include "apps/json_report.h"
#include "dsv4/base/size_text.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif

namespace dsv4::apps {
namespace {

using Json = nlohmann::ordered_json;

#if DSV4_CUDA
Json devices_json() {
  Json list = Json::array();
  for (const DeviceInfo& info : list_devices()) {
    const bool usable = info.major * 10 + info.minor >= kMinMajor * 10 + kMinMinor;
    list.push_back({{"device", fmt::format("cuda:{}", info.ordinal)},
                    {"name", info.name},
                    {"compute_capability", fmt::format("{}.{}", info.major, info.minor)},
                    {"processors", info.num_sms},
                    {"memory_bytes", info.total_bytes},
                    {"l2_bytes", info.l2_bytes},
                    {"usable", usable}});
  }
  return {{"cuda", true}, {"driver", driver_version()}, {"devices", list}};
}
#else
Json devices_json() {
  return {{"cuda", false}, {"driver", nullptr}, {"devices", Json::array()}};
}
#endif

}  // namespace

void inspect_device(bool json) {
  const Json report = devices_json();
  if (json) return fmt::print("{}\n", dump(report));
  if (!report["cuda"].get<bool>())
    return fmt::print("built without CUDA (cmake --preset cuda builds with it): cpu only\n");
  fmt::print("driver: {}\n", report["driver"].get<std::string>());
  if (report["devices"].empty()) fmt::print("no GPU: cpu only\n");
  for (const Json& device : report["devices"]) {
    fmt::print("{}  {}, compute capability {}, {} processors, {}{}\n",
               device["device"].get<std::string>(), device["name"].get<std::string>(),
               device["compute_capability"].get<std::string>(), device["processors"].get<int>(),
               size_text(device["memory_bytes"].get<int64_t>()),
               device["usable"].get<bool>() ? "" : " (too old for the kernels)");
  }
}

}  // namespace dsv4::apps
