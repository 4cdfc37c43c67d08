// All-gathers of NCCL between ranks that are processes, for hosts whose GPUs do not reach each
// other's memory (docs/adr/0038-peer-windows-and-nccl.md). The library is opened at run time; NVLS
// is off.
//
// NCCL waits for a rank without a limit, so a thread looks whether what was enqueued ends in time.

#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "dsv4/comm/message.h"
#include "dsv4/comm/shard_id.h"

namespace dsv4 {

struct NcclFunctions;

class NcclGroup {
 public:
  // All ranks make it at the same time, on the current device. Throws kUnsupported where there is
  // no library, or where NCCL refuses, with its reason. late(): by a thread, once, when what was
  // marked has not ended within the limit, or NCCL says that it failed
  NcclGroup(ShardId id, std::chrono::milliseconds limit, const Swap& swap,
            std::function<void(const std::string& why)> late);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // slots: [world, bytes], of which the own one is there. Enqueued; may be captured.
  void all_gather(unsigned char* slots, int64_t bytes, cudaStream_t stream);
  // What has been enqueued so far, with all-gathers, is to end within the limit.
  void mark(cudaStream_t stream);
  // Ends all-gathers that wait, from any thread, and returns at once. None is enqueued after it.
  void abort() noexcept;
  void set_limit(std::chrono::milliseconds limit) { limit_ = limit; }

 private:
  void check(int result, const char* call) const;
  void wait_until_ready(const char* call);
  void watch();
  std::string failure();
  void* take_comm();  // no call uses it after this one

  const NcclFunctions& nccl_;
  const ShardId id_;
  std::atomic<std::chrono::milliseconds> limit_;
  const std::function<void(const std::string&)> late_;
  std::mutex calls_;  // of comm_
  void* comm_ = nullptr;
  std::atomic<bool> aborted_{false};
  cudaEvent_t marked_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool pending_ = false, stopping_ = false;
  std::chrono::steady_clock::time_point since_;
  std::thread thread_;
};

}  // namespace dsv4
