// Communicators of ranks that are GPUs: of this process, or each of a process of its own. Ranks may
// share a GPU.
//
// An exchange is one kernel on the stream of each rank (exchange.cuh), or part of one that computes
// (Communicator::inside), so a step with exchanges may be captured as a graph. Ranks whose kernels
// wait for each other must be enqueued without waiting for one of them in between: by a thread for
// each rank, or one after the other by one thread.
//
// Ranks that share a GPU are for tests. Their threads take turns (turns.h), because kernels that
// wait keep the GPU from what some calls of the driver wait for, and their exchanges have few CTAs,
// so that other kernels find room beside those that wait. Processes need none of this: the GPU runs
// them in turns of some milliseconds, also while a kernel of one of them waits.
//
// A rank that is a process has this object for itself alone, and windows of the others in it.
//
// Tensors in memory that all ranks share (symmetric_memory.h) need no windows.
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
#include "dsv4/comm/message.h"

namespace dsv4 {

class Device;
class RankProcesses;  // rank_processes.h

// Bytes of an exchange in a step; one of more is several kernels.
inline constexpr int64_t kExchangeWindowBytes = int64_t{32} << 20;
static_assert(kMostRowBytes <= kExchangeWindowBytes);

class DeviceRanks {
 public:
  // devices: of each rank, which outlive this object. window_bytes: of one exchange; one of more
  // rows than fit is divided. Throws kUnsupported where GPUs do not reach each other's memory, or
  // where what one of them stores does not arrive.
  DeviceRanks(std::vector<Device*> devices, int64_t window_bytes, std::chrono::milliseconds limit);
  // A rank that is a process; all of them make this at the same time, with equal sizes. Throws as
  // above.
  DeviceRanks(Device& device, ShardId id, int64_t window_bytes, std::chrono::milliseconds limit,
              const Swap& swap);
  ~DeviceRanks();
  DeviceRanks(const DeviceRanks&) = delete;
  DeviceRanks& operator=(const DeviceRanks&) = delete;

  int world() const;
  // How long kernels of exchanges that are enqueued from now on wait.
  void set_limit(std::chrono::milliseconds limit);
  // Makes symmetric memory of a rank of this process, with halves of so many bytes, which are equal
  // on all ranks. Processes call this at the same time. Ranks have symmetric memory as soon as all
  // of them have; with NCCL they get none. A second call takes the
  // memory of the first one away: a group has one runner at a time.
  void make_symmetric(int r, const SymmetricBytes& bytes);
  // A rank of this process. Its tensors are in memory of the rank's device.
  Communicator& rank(int r);
  // What the thread of a rank enqueues in a step. It may throw RanksStopped.
  void step(int r, const std::function<void()>& enqueue);
  // In a step: where ranks share a GPU, lets all of them get as far before this one goes on.
  void pass_turn(int r);
  // Seconds that the kernels of a rank have waited for others. Waits for its device, the current
  // one.
  double waited(int r) const;
  // Ends all exchanges of this process, from any thread.
  void abort();
  // Closes memory of other processes, of which no exchange is wanted any more, so that these may
  // free it. Throws nothing.
  void close_others();
  // After a wait for the devices: throws RanksStopped when an exchange ended without its values.
  void check() const;

 private:
  class Rank;
  struct Windows;

  // What the constructors have in common, before the windows and after them.
  void begin(std::vector<Device*> devices, int64_t window_bytes, std::chrono::milliseconds limit);
  void end();
  void compare_kinds() const;
  void open_windows();
  void open_nccl();
  void probe();
  void probe(int64_t bytes);  // of a tensor

  std::unique_ptr<Windows> windows_;
  const Swap swap_;                           // null: all ranks are of this process
  std::vector<std::unique_ptr<Rank>> ranks_;  // [world]; null: of another process
};

// The exchanges of a rank that is a process. All ranks call it at the same time; the first call
// makes them, and the group keeps them. A process that ends ends exchanges that wait for it. Throws
// as DeviceRanks.
DeviceRanks& device_exchanges(RankProcesses& group, Device& device,
                              std::chrono::milliseconds limit);

}  // namespace dsv4
