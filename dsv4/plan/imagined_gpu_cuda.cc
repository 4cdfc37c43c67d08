#include "dsv4/plan/imagined_gpu.h"

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"

namespace dsv4 {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Both are the same processor; they differ in memory.
DeviceInfo hopper(const char* name, int64_t total_bytes) {
  return {.name = name,
          .major = 9,
          .minor = 0,
          .num_sms = 132,
          .total_bytes = total_bytes,
          .l2_bytes = 50 * kMiB,
          .max_smem_per_block = 232448,
          .reserved_smem_per_block = 1024};
}

}  // namespace

std::unique_ptr<Device> imagined_gpu(const std::string& name) {
  if (name == "h100") return Device::dry_run(hopper("NVIDIA H100 80GB HBM3", 81559 * kMiB));
  if (name == "h200") return Device::dry_run(hopper("NVIDIA H200", 143771 * kMiB));
  fail(ErrorCode::kBadInput, "--device-info {}: want h100 or h200", quotable(name));
}

}  // namespace dsv4
