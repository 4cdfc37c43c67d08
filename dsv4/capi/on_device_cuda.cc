#include <cuda_runtime.h>

#include <deque>
#include <map>
#include <mutex>

#include "dsv4/base/error.h"
#include "dsv4/capi/on_device.h"
#include "dsv4/device/device.h"
#include "dsv4/device/error.h"
#include "dsv4/device/memory.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4::capi {
namespace {

// Asking the driver takes longer than a call, so an ordinal is asked about once. Entries stay where
// they are.
const DeviceInfo& known_device(int ordinal) {
  static std::mutex mutex;
  static std::map<int, DeviceInfo> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(ordinal);
  if (found != known.end()) return found->second;
  return known.emplace(ordinal, find_device(ordinal)).first->second;
}

// The calling thread's current device, for a while.
class Current {
 public:
  explicit Current(int ordinal) {
    cuda_check(cudaGetDevice(&before_), "cudaGetDevice");
    changed_ = before_ != ordinal;
    if (changed_) cuda_check(cudaSetDevice(ordinal), "cudaSetDevice");
  }
  ~Current() {
    if (changed_) cudaSetDevice(before_);  // it was current a moment ago
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace

void on_device(const Place& place, Context context,
               const std::function<void(const Context&)>& call) {
  if (place.ordinal == DSV4_HOST) return call(context);
  const DeviceInfo& info = known_device(place.ordinal);
  const Current current(place.ordinal);
  const auto bytes = static_cast<int64_t>(place.workspace_bytes);
  TensorView workspace;
  if (place.workspace != nullptr) {
    workspace = {TensorMeta::contiguous(DType::kU8, {bytes}),
                 static_cast<std::byte*>(place.workspace)};
  }
  Device device(info, static_cast<cudaStream_t>(place.stream), workspace);
  context.device = &device;
  call(context);
}

}  // namespace dsv4::capi

struct dsv4_schedule::Blocks {
  std::deque<dsv4::DeviceMemory> memories;  // that the blocks go back to
  // Earlier blocks are kept: a captured graph may name them.
  std::map<int, std::deque<dsv4::Buffer>> of_device;
};

dsv4_schedule::dsv4_schedule() : blocks_(std::make_unique<Blocks>()) {
}
dsv4_schedule::~dsv4_schedule() = default;

void* dsv4_schedule::workspace(const dsv4::capi::Place& place, size_t bytes) {
  using namespace dsv4;  // NOLINT: this is dsv4's, under a C name
  std::deque<Buffer>& blocks = blocks_->of_device[place.ordinal];
  const auto wanted = static_cast<int64_t>(bytes);
  if (!blocks.empty() && blocks.back().view().numel() >= wanted) return blocks.back().view().data;
  const capi::Current current(place.ordinal);
  const auto stream = static_cast<cudaStream_t>(place.stream);
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  cuda_check(cudaStreamIsCapturing(stream, &capturing), "cudaStreamIsCapturing");
  if (capturing != cudaStreamCaptureStatusNone) {
    fail(ErrorCode::kResource,
         "{} bytes of workspace are wanted while the stream is captured, the schedule has {}: make "
         "the call once before the capture",
         wanted, blocks.empty() ? 0 : blocks.back().view().numel());
  }
  blocks_->memories.emplace_back(stream);
  blocks.emplace_back(DType::kU8, std::initializer_list<int64_t>{wanted}, blocks_->memories.back());
  return blocks.back().view().data;
}
