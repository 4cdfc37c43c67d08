// The state of an emulated launch: kernels of a stream, clusters, CTAs, warps, threads, and the
// asynchronous operations that have not completed.

#pragma once

#include <vector_types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dsv4/device/tma_map.h"
#include "tests/emulator/fiber.h"
#include "tests/emulator/instructions.h"
#include "tests/emulator/launch.h"

namespace dsv4::emulator {

constexpr uint32_t kSharedBase = 1024;  // as on Hopper
constexpr int kWarpLanes = 32, kGroupWarps = 4, kMaxWarps = 32;

struct Cta;
struct Cluster;

// A place in the shared memory of a CTA; addresses begin at kSharedBase in each CTA.
struct Place {
  Cta* cta = nullptr;
  uint32_t address = 0;

  bool operator==(const Place&) const = default;
};

// Why a thread does not run. `where`: a Warp, a Barrier, a Cta whose mbarrier is at `address`, the
// Grid that has to complete, or a counter in global memory that has to reach `parity`.
struct Wait {
  enum Kind { kLanes, kBarrier, kMbarrier, kGrid, kCounter } kind;
  const void* where;
  uint32_t address = 0, parity = 0;
};

// The box of a tensor copy.
struct TensorCopy {
  TmaBox box;
  std::array<int32_t, TmaBox::kMaxRank> first{};  // coordinates
  uint32_t bytes = 0;
  std::vector<std::byte> source;  // of a store, when it has been read
};

// A copy that has not completed, or the arrival on an mbarrier after all cp.async before it.
struct Copy {
  enum Kind { kCpAsync, kArrival, kBulk, kStAsync, kTensorLoad, kTensorStore } kind;
  Place to{};                       // kTensorStore: from
  const std::byte* from = nullptr;  // null: zeros
  size_t bytes = 0;
  Place mbarrier{};                  // kArrival; otherwise it counts the bytes
  std::array<std::byte, 8> value{};  // kStAsync: for another CTA of the cluster
  std::shared_ptr<TensorCopy> tensor{};
  int group = 0;        // kTensorStore, kCpAsync
  bool waited = false;  // the thread had executed griddepcontrol.wait

  // cp.async.wait_all waits for it.
  bool is_cp_async() const { return kind == kCpAsync || kind == kArrival; }
};

// Writes to shared memory by the generic proxy; wgmma and bulk copies need a fence.proxy.async
// after them. For each warp, how many of its writes.
using Writes = std::array<uint32_t, kMaxWarps>;
// What has happened before, by program order and by barriers.
struct Knowledge {
  Writes happened{}, fenced{};
  bool waited = false;  // griddepcontrol.wait
};

struct Thread {
  Cta* cta = nullptr;
  int index = 0;  // linear, in its CTA
  uint3 position{};
  int fiber = -1;
  Wait waits{};
  bool runs = true, ended = false;
  bool answer = false;   // result of the barrier that it waited at
  int instructions = 0;  // depth of emulated instructions that it is inside of
  // Between cluster_arrive and cluster_wait: the phase in which it arrived.
  bool cluster_arrived = false, cluster_synced = false;
  int cluster_phase = 0;
  std::vector<Copy> copies;
  bool copying = false;  // is in the machine's list
  // Tensor stores: the open group, how many groups have been read, how many have stores.
  int bulk_group = 0, bulk_read = 0, bulk_stored = 0;
  int copy_group = 0;   // of cp.async: the open group
  uint32_t copied = 0;  // number of the last write by a cp.async; known after waiting for it
  Knowledge knows;
};

// A wgmma; all warps of a warpgroup must agree on it.
struct ProductKind {
  OperandType type = OperandType::kF16;
  bool transposed = false, accumulate = false;
  int n = 0;
  uint64_t a_tile = 0, b_tile = 0;

  bool operator==(const ProductKind&) const = default;
};
// The 16 rows of one warp.
struct Product : ProductKind {
  std::array<const uint32_t*, kWarpLanes> a{};            // registers, or all null
  std::array<std::array<uint32_t, 4>, kWarpLanes> had{};  // their values when it was issued
  std::array<float*, kWarpLanes> d{};
  int group = 0;
  Writes fenced{};  // what it may read
};

struct Warp {
  Cta* cta = nullptr;
  int index = 0, size = kWarpLanes;  // size: fewer in the last warp of some CTAs
  // The instruction that lanes are arriving at.
  std::string_view op;
  std::array<void*, kWarpLanes> lanes{};
  int arrived = 0;

  std::vector<Thread*> runnable;
  bool ready = false;  // is in the machine's list

  std::deque<Product> products;  // issued, not performed
  bool multiplying = false;      // is in the machine's list
  int group = 0;                 // the wgmma group that is open
  size_t issued = 0;
  bool fenced = false;  // wgmma.fence since the last wgmma.wait_group
};

struct Barrier {
  std::string name;
  int arrived = 0, expected = 0;
  bool any = false;
};

struct Cta {
  Cluster* cluster = nullptr;
  int index = 0, rank = 0;  // linear in the grid; in its cluster
  uint3 position{};
  std::unique_ptr<Pages> memory;  // dynamic shared memory
  std::vector<std::byte>
      variables;  // __shared__ variables, while those of another CTA are in place
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::array<Barrier, 16> barriers;
  std::vector<std::vector<ProductKind>> issued;  // by warpgroup
  // For every 16 bytes of shared memory the last write by the generic proxy.
  struct Write {
    int writer = 0;       // a thread
    uint32_t number = 0;  // of its warp's writes, from 1
  };
  std::vector<Write> writes;
  Writes written{};
  // Released at named barriers (key: Barrier) and mbarriers (key: address).
  std::unordered_map<uintptr_t, Knowledge> released;
  int running = 0;
  bool triggered = false;  // griddepcontrol.launch_dependents, or has ended
};

// A kernel of the stream.
struct Grid {
  const Kernel* kernel = nullptr;
  int number = 0, num_clusters = 0;
  int next = 0, live = 0;    // clusters: the next to start, running
  int triggered = 0;         // CTAs
  int64_t delay = -1;        // steps until a dependent kernel starts early; -1: not drawn
  bool waited = false;       // some thread has executed griddepcontrol.wait
  bool waited_first = true;  // all threads that triggered had
  uint64_t before = 0;       // kernels that are complete and visible at its start, as bits
  uint64_t after_wait = 0;   // and after griddepcontrol.wait

  const Launch& launch() const { return kernel->launch; }
  bool complete() const { return next == num_clusters && live == 0; }
};

struct Cluster {
  Grid* grid = nullptr;
  int index = 0;
  std::deque<Cta> ctas;
  Barrier barrier{.name = "cluster_wait"};
  int phase = 0;    // of the barrier
  int running = 0;  // threads
};

inline const Launch& launch_of(const Cta& cta) {
  return cta.cluster->grid->launch();
}
inline Warp& warp_of(const Thread& thread) {
  return thread.cta->warps[static_cast<size_t>(thread.index / kWarpLanes)];
}

}  // namespace dsv4::emulator
