// Instructions of warps, CTAs, clusters and grids.

#include "tests/emulator/instructions.h"
#include "tests/emulator/machine.h"

namespace dsv4::emulator {
namespace {

// All lanes that the warp has; lanes that a partial warp lacks may be named.
void check_mask(const char* op, uint32_t mask) {
  const int size = machine().warp().size;
  const uint32_t all = size == kWarpLanes ? ~0u : (1u << size) - 1;
  if ((mask & all) != all)
    kernel_error("{} of the lanes {:#x}: only whole warps are emulated", op, mask);
}

uintptr_t key(const Barrier& barrier) {
  return reinterpret_cast<uintptr_t>(&barrier);
}

// A barrier counts whole warps: lane 0 of a partial warp arrives for the lanes that are missing.
int arrivals(const Thread& thread) {
  return thread.index % kWarpLanes == 0 ? 1 + kWarpLanes - warp_of(thread).size : 1;
}

// Counts this warp's threads; true: the barrier is complete, and those that wait for it go on.
bool count(Barrier& at, int threads, bool yes) {
  Machine& all = machine();
  all.pause();
  if (at.arrived > 0 && at.expected != threads)
    kernel_error("is at {} with {} threads, others with {}", at.name, threads, at.expected);
  at.expected = threads;
  at.any |= yes;
  release(all.self(), key(at));
  at.arrived += arrivals(all.self());
  if (at.arrived < threads) return false;
  at.arrived = 0;
  all.self().answer = std::exchange(at.any, false);
  all.wake(&at, 0, all.self().answer);
  return true;
}

bool arrive(Barrier& at, int threads, bool yes) {
  Machine& all = machine();
  if (!count(at, threads, yes)) all.wait({.kind = Wait::kBarrier, .where = &at});
  acquire(all.self(), key(at));
  return all.self().answer;
}

}  // namespace

void pause() {
  const Instruction instruction;
  machine().pause();
}
void trap() {
  const Instruction instruction;
  kernel_error("is at __trap");
}

uint32_t shuffle(const char* op, uint32_t mask, uint32_t value, int from) {
  const Instruction instruction;
  check_mask(op, mask);
  struct Mine {
    uint32_t value, result;
    int from;
  } mine{value, 0, from};
  together(op, mine, [op](const auto& lanes) {
    for (Mine* lane : lanes) {
      if (lane == nullptr) continue;
      const Mine* source = lanes[static_cast<size_t>(lane->from)];
      if (source == nullptr) kernel_error("{} from lane {}, which does not exist", op, lane->from);
      lane->result = source->value;
    }
  });
  return mine.result;
}

uint32_t ballot(const char* op, uint32_t mask, bool yes) {
  const Instruction instruction;
  check_mask(op, mask);
  struct Mine {
    bool yes;
    uint32_t result;
  } mine{yes, 0};
  together(op, mine, [](const auto& lanes) {
    uint32_t bits = 0;
    for (size_t i = 0; i < lanes.size(); ++i)
      bits |= uint32_t{lanes[i] != nullptr && lanes[i]->yes} << i;
    for (Mine* lane : lanes) {
      if (lane != nullptr) lane->result = bits;
    }
  });
  return mine.result;
}

void sync_warp() {
  int mine = 0;
  together("__syncwarp", mine, [](const auto&) { share_knowledge(machine().warp()); });
}

namespace {

Barrier& named_barrier(int id, int threads) {
  Cta& cta = machine().cta();
  const auto most = static_cast<int>(cta.warps.size()) * kWarpLanes;
  if (id < 0 || id >= static_cast<int>(cta.barriers.size()) || threads % kWarpLanes != 0 ||
      threads <= 0 || threads > most)
    kernel_error("is at barrier {} of {} threads", id, threads);
  return cta.barriers[static_cast<size_t>(id)];
}

}  // namespace

bool barrier(int id, int threads, bool yes) {
  const Instruction instruction;
  return arrive(named_barrier(id, threads), threads, yes);
}
void barrier_arrive(int id, int threads) {
  const Instruction instruction;
  count(named_barrier(id, threads), threads, false);
}
bool barrier_of_all(bool yes) {
  const Instruction instruction;
  Cta& cta = machine().cta();
  return arrive(cta.barriers[0], static_cast<int>(cta.warps.size()) * kWarpLanes, yes);
}

void cluster_arrive() {
  const Instruction instruction;
  Machine& all = machine();
  all.pause();
  Thread& self = all.self();
  Cluster& cluster = *self.cta->cluster;
  if (std::exchange(self.cluster_arrived, true))
    kernel_error("is at cluster_arrive again without a cluster_wait");
  self.cluster_phase = cluster.phase;
  release(self, key(cluster.barrier));
  const Launch& launch = launch_of(*self.cta);
  cluster.barrier.expected = launch.block.count() * launch.cluster;
  if (++cluster.barrier.arrived < cluster.barrier.expected) return;
  cluster.barrier.arrived = 0;
  ++cluster.phase;
  all.wake(&cluster.barrier);
}
void cluster_wait() {
  const Instruction instruction;
  Machine& all = machine();
  all.pause();
  Thread& self = all.self();
  Cluster& cluster = *self.cta->cluster;
  if (!std::exchange(self.cluster_arrived, false))
    kernel_error("is at cluster_wait without a cluster_arrive");
  while (cluster.phase == self.cluster_phase)
    all.wait({.kind = Wait::kBarrier, .where = &cluster.barrier});
  self.cluster_synced = true;
  acquire(self, key(cluster.barrier));
}

int cluster_rank() {
  return machine().cta().rank;
}
int cluster_id() {  // along x
  const Cta& cta = machine().cta();
  return static_cast<int>(cta.position.x) / launch_of(cta).cluster;
}

// The first thread of a CTA counts, which is the earliest that the hardware may do.
void launch_dependents() {
  const Instruction instruction;
  machine().pause();
  machine().trigger(machine().cta());
}

void counter_add(int32_t* counter, int32_t value) {
  const Instruction instruction;
  machine().pause();
  *counter += value;
  machine().wake(counter);
}
template <class T>
void wait_until_at_least(const T* counter, T least) {
  const Instruction instruction;
  machine().pause();
  while (*counter < least)
    machine().wait(
        {.kind = Wait::kCounter, .where = counter, .parity = static_cast<uint32_t>(least)});
}
void counter_wait(const int32_t* counter, int32_t least) {
  wait_until_at_least(counter, least);
}
void flag_raise(int64_t* flag, int64_t value) {
  const Instruction instruction;
  machine().pause();
  *flag = value;
  machine().wake(flag);
}
void flag_wait(const int64_t* flag, int64_t least) {
  wait_until_at_least(flag, least);
}

// Until the kernel directly before is complete. If a thread of that one waited, too, then so are
// the kernels that it waited for.
void wait_for_prerequisites() {
  const Instruction instruction;
  Machine& all = machine();
  all.pause();
  Grid& grid = all.grid();
  if (grid.launch().pdl && grid.number > 0) {
    const Grid& previous = all.grids[static_cast<size_t>(grid.number) - 1];
    while (!previous.complete()) all.wait({.kind = Wait::kGrid, .where = &previous});
    grid.after_wait = previous.before | (previous.waited ? previous.after_wait : 0) |
                      uint64_t{1} << previous.number;
  }
  grid.waited = true;
  instruction.thread.knows.waited = true;
}

}  // namespace dsv4::emulator
