// An emulated stream of kernels: their threads as fibers in random order, and asynchronous
// operations that complete in random order (docs/kernels/emulator.md). Kernels call
// instructions.h.

#pragma once

#include <exception>
#include <functional>
#include <list>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "tests/emulator/accesses.h"
#include "tests/emulator/state.h"

namespace dsv4::emulator {

struct Machine {
  Machine(const std::vector<Kernel>& kernels, uint64_t seed);
  void run();

  Thread& self() { return *current; }
  Cta& cta() { return *current->cta; }
  Warp& warp() { return warp_of(*current); }
  Grid& grid() { return *cta().cluster->grid; }

  void wait(const Wait& why);  // until the thread is woken
  // Wakes the threads that wait there.
  void wake(const void* where, uint32_t address = 0, bool answer = false);
  void wake(Thread& thread, bool answer = false);
  // This lane is at `op`. True for the last lane of the warp, which then does the work of all lanes
  // and releases them; false for the others, after that has happened.
  bool is_last_lane(std::string_view op, void* mine);
  void release_lanes();
  void pause();  // other threads may run here
  bool is_likely() { return rng.uniform() < rate; }
  void remember(Thread& thread);  // has copies
  void remember(Warp& warp);      // has products
  void trigger(Cta& cta);         // griddepcontrol.launch_dependents

  // shared_memory.cc. `size` bytes at a shared address of `cta`; fails outside and off `align`.
  std::byte* shared(std::string_view op, Cta& cta, uint32_t address, size_t size, size_t align);
  std::byte* at(const Place& place);
  Place place_of(std::string_view op, const void* pointer);  // of the running thread's CTA
  // `place` in the CTA with this rank in the cluster. That CTA must run: it has started if the
  // running thread has executed cluster_wait.
  Place in_cluster(std::string_view op, const Place& place, uint32_t rank);
  bool in_shared(const void* pointer);  // of the running thread's CTA
  uint32_t address_of(const Cta& cta, const void* pointer);
  void bring_variables(Cta& cta);  // its __shared__ variables are in place
  bool on_stack(const void* pointer) const { return fibers_.on_stack(pointer); }

  Rng rng;
  const double rate;  // probability per step that an asynchronous operation advances
  Accesses accesses;
  std::deque<Grid> grids;
  std::exception_ptr error;

 private:
  bool advance_grids();  // machine.cc: starts clusters that may start; whether one did
  bool may_start(Grid& grid);
  void start_cluster(Grid& grid);
  void start_threads(Cta& cta);
  void thread_body(const Kernel& kernel);
  void end_thread(Thread& thread);
  void end_cluster(Cluster& cluster);
  void complete_operations(Cluster& cluster);
  void step();
  void enter(Thread& thread);  // makes it the current thread

  Thread& pick();  // schedule.cc
  void favor(const Thread& thread);
  Warp* favored();
  Warp& any_ready();
  void make_runnable(Thread& thread);
  bool advance_background();
  void forget(const Cluster& cluster);

  std::string deadlock();  // report.cc
  static std::string reason(const Thread& thread);

  Fibers fibers_;
  Thread* current = nullptr;
  std::list<Cluster> clusters_;
  Cluster* ended_ = nullptr;  // its last thread has just ended
  Cta* in_place_ = nullptr;   // whose __shared__ variables are in place
  int runnable_ = 0;
  std::vector<Warp*> ready_;  // those with runnable threads, and some more
  // The warps that run on for some steps while all others stand still; null: none.
  Warp* favorite_ = nullptr;
  int favored_warps_ = 0, favored_steps_ = 0;
  std::vector<Thread*> copying_;
  std::vector<Warp*> multiplying_;
  friend Thread* kernel_thread();
};

Machine& machine();  // the one that runs
void start_shared_memory(Cta& cta);
size_t shared_span(const Cta& cta);  // bytes from kSharedBase on
// The thread whose own code runs now; null inside of emulated instructions and of the machine.
Thread* kernel_thread();
std::string thread_name(const Thread& thread);

// Every function of instructions.h holds one: what it accesses is not the kernel's own access.
struct Instruction {
  Instruction() : thread(machine().self()) { ++thread.instructions; }
  ~Instruction() { --thread.instructions; }
  Instruction(const Instruction&) = delete;
  Instruction& operator=(const Instruction&) = delete;
  Thread& thread;
};

template <class... Args>
[[noreturn]] void kernel_error(fmt::format_string<Args...> format, Args&&... args) {
  const Thread& at = machine().self();
  fail(ErrorCode::kInvalidArgument, "{} {}", thread_name(at),
       fmt::format(format, std::forward<Args>(args)...));
}

// Completes one operation. perform_product: the oldest one of the warp.
void perform_copy(Thread& thread, size_t which);
void perform_product(Warp& warp);
void load_box(const Thread& thread, const Copy& copy);  // tensor_copies.cc
void store_box(const Thread& thread, const Copy& copy);
// The async proxy is about to write there: undefined from now on. Fails if a write of the generic
// proxy in the thread's own CTA is not fenced.
void overwrite(std::string_view what, const Thread& thread, const Place& to, uint32_t bytes);
std::string describe_mbarrier(const Place& place);

// proxies.cc: the generic proxy writes (stmatrix, cp.async, ordinary stores); the async proxy
// (wgmma, bulk copies) reads and overwrites.
void note_write(Thread& thread, uint32_t address);
void note_copy(Thread& thread, uint32_t address);
void acquire_copies(Thread& thread);
void release_copies(const Thread& thread, uintptr_t barrier);
void release(const Thread& thread, uintptr_t barrier);
void acquire(Thread& thread, uintptr_t barrier);
void share_knowledge(Warp& warp);
Writes fenced_for(const Warp& warp);
// `what` reads or overwrites 16 bytes through the async proxy.
void check_fenced(std::string_view what, const Cta& cta, uint32_t address, const Writes& fenced);

// An instruction of a whole warp: body(lanes) once, with the operands of each lane; null for lanes
// that the last warp of a CTA does not have.
template <class Mine, class Body>
void together(std::string_view op, Mine& mine, const Body& body) {
  const Instruction instruction;
  Machine& all = machine();
  all.pause();
  if (!all.is_last_lane(op, &mine)) return;
  std::array<Mine*, kWarpLanes> lanes;
  for (size_t i = 0; i < kWarpLanes; ++i) lanes[i] = static_cast<Mine*>(all.warp().lanes[i]);
  body(lanes);
  all.release_lanes();
}

}  // namespace dsv4::emulator
