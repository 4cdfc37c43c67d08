// Communicators of ranks that are GPUs of this process, or share some of them.
//
// An exchange is one kernel on the stream of each rank (exchange.cuh), so a step with exchanges may
// be captured as a graph. Ranks whose kernels wait for each other must be enqueued without waiting
// for one of them in between: by a thread for each rank, or one after the other by one thread.
//
// Ranks that share a GPU are for tests. Their threads take turns (turns.h), because kernels that
// wait keep the GPU from what some calls of the driver wait for, and their exchanges have few CTAs,
// so that other kernels find room beside those that wait.
//
// A rank waits for the others no longer than the limit. Then, or after abort(), no rank waits any
// more, what the exchanges give has no meaning, and check() throws RanksStopped.

#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dsv4/comm/communicator.h"

namespace dsv4 {

class Device;

class DeviceRanks {
 public:
  // devices: of each rank, which outlive this object. window_bytes: of one exchange; one of more
  // rows than fit is divided. Throws kUnsupported where GPUs do not reach each other's memory, or
  // where what one of them stores does not arrive.
  DeviceRanks(std::vector<Device*> devices, int64_t window_bytes, std::chrono::milliseconds limit);
  ~DeviceRanks();
  DeviceRanks(const DeviceRanks&) = delete;
  DeviceRanks& operator=(const DeviceRanks&) = delete;

  int world() const;
  // Its tensors are in memory of the rank's device.
  Communicator& rank(int r);
  // What the thread of a rank enqueues in a step. It may throw RanksStopped.
  void step(int r, const std::function<void()>& enqueue);
  // Seconds that the kernels of a rank have waited for others. Waits for its device, the current
  // one.
  double waited(int r) const;
  // Ends all exchanges, from any thread.
  void abort();
  // After a wait for the devices: throws RanksStopped when an exchange ended without its values.
  void check() const;

 private:
  class Rank;
  struct Windows;

  void probe();

  std::unique_ptr<Windows> windows_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace dsv4
