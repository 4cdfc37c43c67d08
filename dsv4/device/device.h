// One CUDA device: what it is, its memory, its stream, and workspace for the calls on that stream.
//
// Everything that an engine enqueues goes to one stream, in order. A failed kernel leaves the CUDA
// context unusable ("sticky" errors): from then on wait() and everything else throws.

#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>
#include <vector>

#include "dsv4/device/kernel_times.h"
#include "dsv4/tensor/scratch.h"

namespace dsv4 {

struct DeviceInfo {
  int ordinal = 0;
  std::string name;          // "NVIDIA H100 80GB HBM3"
  int major = 0, minor = 0;  // compute capability
  int num_sms = 0;           // streaming multiprocessors
  int64_t total_bytes = 0, l2_bytes = 0;
  int max_smem_per_block = 0;       // bytes, opt-in maximum
  int reserved_smem_per_block = 0;  // bytes that the system keeps at the start of every block's
};

// Oldest compute capability that the kernels are compiled for.
inline constexpr int kMinMajor = 8, kMinMinor = 0;

// "580.159.04 (CUDA 13.0)"-like; "none" without a driver.
std::string driver_version();
// Empty without a GPU. Throws kUnsupported when there is a driver that does not work, or an older
// one than this program's CUDA runtime wants: the sentence names both versions.
std::vector<DeviceInfo> list_devices();

// Throws kUnsupported naming the GPUs that are there when `ordinal` is none of them, or when it is
// older than kMinMajor.kMinMinor.
DeviceInfo find_device(int ordinal);

// Whether kernels may start before the previous one has ended (LaunchShape::pdl): from sm_90 on,
// unless DSV4_NO_EARLY is set. The results have the same bits.
bool early_launch(const DeviceInfo& info);

class Device {
 public:
  // Makes it the calling thread's current device, with a stream of its own and a workspace that
  // grows. Throws what find_device() throws.
  explicit Device(int ordinal);
  // For callers that have both: works on their stream, and takes temporaries from their workspace
  // only (Scratch::borrowing). Both outlive it; `info.ordinal` is the current device. No driver
  // call is made, so one may be made per op call, also while the stream is captured.
  Device(DeviceInfo info, cudaStream_t stream, const TensorView& workspace);
  // A dry run: launch() and lt_matmul() enqueue nothing, and workspace() counts what ops take
  // (Scratch::counting). Without memory and stream; needs no GPU.
  static std::unique_ptr<Device> dry_run(DeviceInfo info);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceInfo& info() const { return info_; }
  bool is_dry_run() const { return memory_ == nullptr; }
  cudaStream_t stream() const { return stream_; }
  Memory& memory() { return *memory_; }  // of the device
  Memory& pinned() { return *pinned_; }  // page-locked host memory, also readable by kernels

  // Temporaries of one op call: take inside a Scope; the next call may get the same bytes, which
  // is in order because both are on the stream.
  Scratch& workspace() { return *workspace_; }

  // Non-null: every launch is timed (and no graph may be captured).
  KernelTimes* times() { return times_.get(); }
  void time_kernels(bool on);

  // Blocks until the stream is idle; throws what any kernel on it died of.
  void wait();
  // Free memory now, of the whole card.
  int64_t free_bytes() const;

 private:
  explicit Device(DeviceInfo info);

  DeviceInfo info_;
  cudaStream_t stream_ = nullptr;
  bool owns_stream_ = false;
  std::unique_ptr<Memory> memory_, pinned_;
  std::unique_ptr<Scratch> workspace_;
  std::unique_ptr<KernelTimes> times_;
};

}  // namespace dsv4
