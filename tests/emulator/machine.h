// An emulated launch: blocks of a cluster at a time, their threads as fibers in random order, and
// what is under way behind them (docs/kernels/emulator.md). instructions.h is what kernels call.

#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "tests/emulator/fiber.h"
#include "tests/emulator/launch.h"

namespace dsv4::emulator {

constexpr uint32_t kSharedBase = 1024;  // as on Hopper
constexpr int kWarpLanes = 32, kGroupWarps = 4, kMostWarps = 32;

struct Block;
struct Machine;

// Why a thread does not run. `where`: a Warp, a Barrier, or an mbarrier in shared memory.
struct Wait {
  enum Kind { kLanes, kBarrier, kMbarrier } kind;
  const void* where;
  uint32_t parity = 0;
};

// A copy under way, or an mbarrier that hears when every cp.async before it is done.
struct Copy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;  // null: zeros
  size_t bytes = 0;
  void* arrival = nullptr;
  void* told = nullptr;  // a bulk copy or a store: the mbarrier that counts its bytes
  // A store in another block of the cluster.
  std::optional<uint32_t> rank{};
  std::array<std::byte, 8> value{};

  bool is_cp_async() const { return arrival == nullptr && told == nullptr; }
};

// Writes to shared memory that wgmma sees, and bulk copies overwrite, only behind a
// fence_proxy_async, a number for each warp: its first so many.
using Writes = std::array<uint32_t, kMostWarps>;
struct Knowledge {
  Writes happened{}, fenced{};
};

struct Thread {
  Block* block = nullptr;
  int index = 0;  // in its block
  Wait waits{};
  bool runs = true, ended = false;
  bool answer = false;  // of the barrier it waited at
  // Of cluster_arrive and cluster_wait; between the two the phase that it has arrived in.
  bool cluster_arrived = false, cluster_met = false;
  int cluster_phase = 0;
  std::vector<Copy> copies;
  bool copying = false;  // is in the machine's list
  uint32_t copied = 0;   // the last number of a copy's write; nobody knows before waiting for it
  Knowledge knows;
};

// A wgmma, as all warps of a warpgroup agree on it.
struct ProductKind {
  bool bf16 = false, transposed = false, accumulate = false;
  int n = 0;
  uint64_t a_tile = 0, b_tile = 0;

  bool operator==(const ProductKind&) const = default;
};
// The 16 rows of a warp.
struct Product : ProductKind {
  std::array<const uint32_t*, kWarpLanes> a{};            // registers, or all null
  std::array<std::array<uint32_t, 4>, kWarpLanes> had{};  // what was in them at first
  std::array<float*, kWarpLanes> d{};
  int group = 0;
  Writes fenced{};  // what it may read
};

struct Warp {
  Block* block = nullptr;
  int index = 0;
  // The instruction that lanes are arriving at.
  std::string_view op;
  std::array<void*, kWarpLanes> lanes{};
  int arrived = 0;

  std::vector<Thread*> runnable;
  bool ready = false;  // is in the machine's list

  std::deque<Product> products;  // not performed
  bool multiplying = false;      // is in the machine's list
  int group = 0;                 // the one that is open
  size_t issued = 0;
  bool fenced = false;  // by wgmma_fence, since the last wait
};

struct Barrier {
  std::string name;
  int arrived = 0, expected = 0;
  bool any = false;
};

struct Block {
  int index = 0, rank = 0;  // rank: in its cluster
  std::unique_ptr<Pages> memory;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::array<Barrier, 16> barriers;
  std::vector<std::vector<ProductKind>> issued;  // by warpgroup
  // Of every 16 bytes, the last write that has to be fenced.
  struct Write {
    int writer = 0;       // a thread
    uint32_t number = 0;  // of its warp's, from 1
  };
  std::vector<Write> writes;
  Writes written{};
  std::unordered_map<const void*, Knowledge> told;  // to barriers and mbarriers
  int running = 0;
};

struct Machine {
  explicit Machine(const Launch& launch_);
  void run(const std::function<void()>& kernel);

  Thread& self() { return *current; }
  Warp& warp() { return current->block->warps[static_cast<size_t>(current->index / kWarpLanes)]; }
  void wait(const Wait& why);                         // until somebody wakes this thread
  void wake(const void* where, bool answer = false);  // those who wait there
  void wake(Thread& thread, bool answer = false);
  // This lane is at `op`. True for the last one of the warp, which then does the work of all and
  // releases them; the others return when that has happened.
  bool is_last_lane(std::string_view op, void* mine);
  void release_lanes();
  void pause();  // others may run in between
  bool is_likely() { return rng.uniform() < rate; }
  void remember(Thread& thread);  // has copies
  void remember(Warp& warp);      // has products

  // `size` bytes at a shared address of the running thread's block; fails outside and off `align`.
  std::byte* shared(std::string_view op, Block& block, uint32_t address, size_t size, size_t align);
  // What block `rank` of the cluster has where the running block has `place`. That block has to
  // run: it has begun if the running thread is behind a cluster_wait.
  void* in_cluster(std::string_view op, const void* place, uint32_t rank);

  const Launch launch;
  Rng rng;
  double rate;               // how eager what is in the background is
  std::deque<Block> blocks;  // of the running cluster
  Barrier cluster{.name = "cluster_wait"};
  int cluster_phase = 0;
  int cluster_index = 0;

 private:
  void run_cluster(const std::function<void()>& kernel);
  void step();
  Thread& pick();
  void favour(const Thread& thread);
  Warp* favoured();
  Warp& any_ready();
  void make_runnable(Thread& thread);
  bool advance_background();
  void thread_body(const std::function<void()>& kernel);
  void end_thread(Thread& thread);
  void check_ends();
  void check_bulk_copies();
  static std::string reason(const Thread& thread);
  std::string deadlock();

  Fibers fibers_;
  Thread* current = nullptr;
  int runnable_ = 0;
  std::vector<Warp*> ready_;  // those with runnable threads, and some more
  // Who runs on, for so many steps, while all others stand still; null: nobody in particular.
  Warp* favourite_ = nullptr;
  int favoured_warps_ = 0, favoured_steps_ = 0;
  std::vector<Thread*> copying_;
  std::vector<Warp*> multiplying_;
  int running_ = 0;
  std::exception_ptr error_;
};

Machine& machine();  // the one that runs
std::string thread_name(const Thread& thread);

template <class... Args>
[[noreturn]] void kernel_error(fmt::format_string<Args...> format, Args&&... args) {
  const Thread& at = machine().self();
  fail(ErrorCode::kInvalidArgument, "{} {}", thread_name(at),
       fmt::format(format, std::forward<Args>(args)...));
}

// One step of what is in the background. perform_product: the oldest of the warp.
void perform_copy(Thread& thread, size_t which);
void perform_product(Warp& warp);
std::string describe_mbarrier(const void* barrier);

// proxies.cc: stmatrix and cp.async write in one way, wgmma reads and bulk copies write in another.
void note_write(Thread& thread, const std::byte* to);
void note_copy(Thread& thread, const std::byte* to);
void learn_of_copies(Thread& thread);
void tell_of_copies(const Thread& thread, const void* barrier);
void tell(const Thread& thread, const void* barrier);
void learn(Thread& thread, const void* barrier);
void share_knowledge(Warp& warp);
Writes fenced_for(const Warp& warp);
// `what` reads or overwrites 16 bytes by the way of wgmma.
void check_fenced(std::string_view what, const Block& block, uint32_t address,
                  const Writes& fenced);

// An instruction of a whole warp: body(lanes) once, with what each lane brings.
template <class Mine, class Body>
void together(std::string_view op, Mine& mine, const Body& body) {
  Machine& all = machine();
  all.pause();
  if (!all.is_last_lane(op, &mine)) return;
  std::array<Mine*, kWarpLanes> lanes;
  for (size_t i = 0; i < kWarpLanes; ++i) lanes[i] = static_cast<Mine*>(all.warp().lanes[i]);
  body(lanes);
  all.release_lanes();
}

}  // namespace dsv4::emulator
