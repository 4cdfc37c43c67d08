// Instructions of warps, blocks and clusters.

#include "tests/emulator/instructions.h"
#include "tests/emulator/machine.h"

namespace dsv4::emulator {
namespace {

void check_mask(const char* op, uint32_t mask) {
  if (mask != ~0u) kernel_error("{} of the lanes {:#x}: only whole warps are emulated", op, mask);
}

bool arrive(Barrier& at, int threads, bool yes) {
  Machine& all = machine();
  all.pause();
  if (at.arrived > 0 && at.expected != threads)
    kernel_error("is at {} with {} threads, others with {}", at.name, threads, at.expected);
  at.expected = threads;
  at.any |= yes;
  tell(all.self(), &at);
  if (++at.arrived < threads) {
    all.wait({.kind = Wait::kBarrier, .where = &at});
  } else {
    at.arrived = 0;
    all.self().answer = std::exchange(at.any, false);
    all.wake(&at, all.self().answer);
  }
  learn(all.self(), &at);
  return all.self().answer;
}

}  // namespace

void pause() {
  machine().pause();
}
void trap() {
  kernel_error("is at __trap");
}

uint32_t shuffle(const char* op, uint32_t mask, uint32_t value, int from) {
  check_mask(op, mask);
  struct Mine {
    uint32_t value, result;
    int from;
  } mine{value, 0, from};
  together(op, mine, [](const auto& lanes) {
    for (Mine* lane : lanes) lane->result = lanes[static_cast<size_t>(lane->from)]->value;
  });
  return mine.result;
}

uint32_t ballot(const char* op, uint32_t mask, bool yes) {
  check_mask(op, mask);
  struct Mine {
    bool yes;
    uint32_t result;
  } mine{yes, 0};
  together(op, mine, [](const auto& lanes) {
    uint32_t bits = 0;
    for (size_t i = 0; i < lanes.size(); ++i) bits |= uint32_t{lanes[i]->yes} << i;
    for (Mine* lane : lanes) lane->result = bits;
  });
  return mine.result;
}

void sync_warp() {
  int mine = 0;
  together("__syncwarp", mine, [](const auto&) { share_knowledge(machine().warp()); });
}

bool barrier(int id, int threads, bool yes) {
  auto& barriers = machine().self().block->barriers;
  if (id < 0 || id >= static_cast<int>(barriers.size()) || threads % kWarpLanes != 0 ||
      threads <= 0 || threads > machine().launch.block)
    kernel_error("is at barrier {} of {} threads", id, threads);
  return arrive(barriers[static_cast<size_t>(id)], threads, yes);
}

void cluster_arrive() {
  pause();
  Machine& all = machine();
  Thread& self = all.self();
  if (std::exchange(self.cluster_arrived, true))
    kernel_error("is at cluster_arrive again without a cluster_wait");
  self.cluster_phase = all.cluster_phase;
  tell(self, &all.cluster);
  all.cluster.expected = all.launch.block * all.launch.cluster;
  if (++all.cluster.arrived < all.cluster.expected) return;
  all.cluster.arrived = 0;
  ++all.cluster_phase;
  all.wake(&all.cluster);
}
void cluster_wait() {
  pause();
  Machine& all = machine();
  Thread& self = all.self();
  if (!std::exchange(self.cluster_arrived, false))
    kernel_error("is at cluster_wait without a cluster_arrive");
  while (all.cluster_phase == self.cluster_phase)
    all.wait({.kind = Wait::kBarrier, .where = &all.cluster});
  self.cluster_met = true;
  learn(self, &all.cluster);
}

int cluster_rank() {
  return machine().self().block->rank;
}
int cluster_id() {
  return machine().cluster_index;
}

uint32_t shared_address(const void* pointer) {
  const Block& block = *machine().self().block;
  const Pages& memory = *block.memory;
  const auto* at = static_cast<const std::byte*>(pointer);
  if (at < memory.data() || at > memory.data() + machine().launch.shared)
    kernel_error("asks for the shared address of a pointer to elsewhere");
  return static_cast<uint32_t>(block.rank) * kSharedWindow + kSharedBase +
         static_cast<uint32_t>(at - memory.data());
}
unsigned char* block_memory() {
  return reinterpret_cast<unsigned char*>(machine().self().block->memory->data());
}

}  // namespace dsv4::emulator
