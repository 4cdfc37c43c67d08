#include "dsv4/device/device.h"

#include <utility>

#include "dsv4/base/env.h"
#include "dsv4/base/error.h"
#include "dsv4/device/error.h"
#include "dsv4/device/memory.h"

namespace dsv4 {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

DeviceInfo describe(int ordinal) {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
  return {.ordinal = ordinal,
          .name = properties.name,
          .major = properties.major,
          .minor = properties.minor,
          .num_sms = properties.multiProcessorCount,
          .total_bytes = static_cast<int64_t>(properties.totalGlobalMem),
          .l2_bytes = properties.l2CacheSize,
          .max_smem_per_block = static_cast<int>(properties.sharedMemPerBlockOptin),
          .reserved_smem_per_block = static_cast<int>(properties.reservedSharedMemPerBlock)};
}

}  // namespace

std::string driver_version() {
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) return "none";
  return "CUDA " + version_text(version);
}

std::vector<DeviceInfo> list_devices() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  // Without a driver library the runtime calls any driver "insufficient".
  if (status == cudaErrorNoDevice || driver_version() == "none") return {};
  if (status == cudaErrorInsufficientDriver)
    fail(ErrorCode::kUnsupported,
         "the driver supports {}, this program needs CUDA {}: install a newer driver",
         driver_version(), version_text(CUDART_VERSION));
  cuda_check(status, "cudaGetDeviceCount");
  std::vector<DeviceInfo> devices;
  for (int i = 0; i < count; ++i) devices.push_back(describe(i));
  return devices;
}

DeviceInfo find_device(int ordinal) {
  const std::vector<DeviceInfo> devices = list_devices();
  if (devices.empty())
    fail(ErrorCode::kUnsupported,
         "no CUDA GPU here (driver: {}): choose the CPU (--device cpu; from C DSV4_HOST)",
         driver_version());
  if (ordinal < 0 || ordinal >= static_cast<int>(devices.size()))
    fail(ErrorCode::kUnsupported, "no GPU cuda:{}: this machine has cuda:0 to cuda:{}", ordinal,
         devices.size() - 1);
  const DeviceInfo& info = devices[static_cast<size_t>(ordinal)];
  if (info.major * 10 + info.minor < kMinMajor * 10 + kMinMinor)
    fail(ErrorCode::kUnsupported,
         "cuda:{} ({}) has compute capability {}.{}, the kernels need {}.{} or newer", ordinal,
         info.name, info.major, info.minor, kMinMajor, kMinMinor);
  return info;
}

bool early_launch(const DeviceInfo& info) {
  static const bool allowed = env("DSV4_NO_EARLY").empty();
  return allowed && info.major >= 9;
}

Device::Device(int ordinal) : info_(find_device(ordinal)), owns_stream_(true) {
  cuda_check(cudaSetDevice(ordinal), "cudaSetDevice");
  cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  memory_ = std::make_unique<DeviceMemory>(stream_);
  pinned_ = std::make_unique<PinnedMemory>();
  workspace_ = std::make_unique<Scratch>(*memory_);
}

Device::Device(DeviceInfo info, cudaStream_t stream, const TensorView& workspace)
    : info_(std::move(info)),
      stream_(stream),
      memory_(std::make_unique<DeviceMemory>(stream)),
      pinned_(std::make_unique<PinnedMemory>()),
      workspace_(std::make_unique<Scratch>(Scratch::borrowing(workspace))) {
}

Device::Device(DeviceInfo info)
    : info_(std::move(info)), workspace_(std::make_unique<Scratch>(Scratch::counting())) {
}

std::unique_ptr<Device> Device::dry_run(DeviceInfo info) {
  return std::unique_ptr<Device>(new Device(std::move(info)));
}

Device::~Device() {
  workspace_.reset();
  if (owns_stream_) cudaStreamDestroy(stream_);  // nothing can be done about a failure here
}

void Device::time_kernels(bool on) {
  times_ = on ? std::make_unique<KernelTimes>() : nullptr;
}

void Device::wait() {
  cuda_check(cudaStreamSynchronize(stream_), "waiting for the GPU");
}

int64_t Device::free_bytes() const {
  size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

}  // namespace dsv4
