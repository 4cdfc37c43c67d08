#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/device/device.h"
#include "dsv4/device/error.h"
#include "dsv4/device/graph.h"
#include "dsv4/tensor/buffer.h"
#include "tests/harness/arena.h"
#include "tests/harness/gpu.h"
#include "tests/harness/kernels.h"

namespace dsv4::test {

Device* gpu() {
  static Device* const device = list_devices().empty() ? nullptr : new Device(0);
  return device;
}

ComputeCapability gpu_capability() {
  if (gpu() == nullptr) return {};
  return {.major = gpu()->info().major, .minor = gpu()->info().minor};
}

void wait(Device& device) {
  device.wait();
}

Memory& memory_for(Device* device) {
  return device == nullptr ? host_memory() : device->memory();
}

void with_workspace(Device& device, const TensorView& workspace,
                    const std::function<void(Device&)>& call) {
  Device borrowing(device.info(), device.stream(), workspace);
  call(borrowing);
  device.wait();
}

void with_capture(Device& device, const std::function<void()>& enqueue,
                  const std::function<void(const std::function<void()>&)>& use) {
  const Graph graph = Graph::capture(device, enqueue);
  use([&] { graph.launch(device); });
  device.wait();
}

namespace {

// New contents, and the list of writes that brings them to their tensors, where the GPU reads both.
class StagedWrites {
 public:
  StagedWrites(Device& device, const std::vector<Write>& writes) {
    constexpr int64_t kAlign = 16;
    int64_t bytes = 0;
    for (const Write& write : writes) bytes += align_up(write.bytes, kAlign);
    const auto count = static_cast<int64_t>(writes.size());
    contents_ = Buffer(DType::kU8, {std::max<int64_t>(bytes, 1)}, device.pinned());
    list_ = Buffer(DType::kU8, {(count + 1) * int64_t{sizeof(Write)}}, device.pinned());
    std::byte* next = contents_.as<std::byte>();
    for (size_t i = 0; i < writes.size(); ++i) {
      std::copy_n(writes[i].from, writes[i].bytes, next);
      list()[i] = {.to = writes[i].to, .from = next, .bytes = writes[i].bytes};
      next += align_up(writes[i].bytes, kAlign);
    }
  }
  Write* list() const { return reinterpret_cast<Write*>(list_.as<std::byte>()); }

 private:
  Buffer contents_, list_;
};

}  // namespace

void after_late_writes(Device& device, const std::vector<Write>& writes,
                       const std::function<void()>& enqueue) {
  const StagedWrites staged(device, writes);
  const Buffer go(DType::kI32, {1}, device.pinned());
  const auto release = [&] { *static_cast<volatile int32_t*>(go.as<int32_t>()) = 1; };
  write_late(device, staged.list(), static_cast<int>(writes.size()), go.as<int32_t>());
  try {
    enqueue();
  } catch (...) {
    release();
    device.wait();
    throw;
  }
  release();
  device.wait();
}

void let_gpu_address(void* pages, size_t bytes) {
  cuda_check(cudaHostRegister(pages, bytes, cudaHostRegisterMapped), "cudaHostRegister");
}

void forget_pages(void* pages) {
  cuda_check(cudaHostUnregister(pages), "cudaHostUnregister");
}

}  // namespace dsv4::test
