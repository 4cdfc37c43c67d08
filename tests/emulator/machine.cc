// The life of kernels, clusters and threads.

#include "tests/emulator/machine.h"

#include <algorithm>

#include "dsv4/base/bits.h"
#include "tests/emulator/builtins.h"

namespace dsv4::emulator {
namespace {

Machine* the_machine = nullptr;

// Asynchronous operations complete as late as possible, rarely, often, almost at once.
constexpr double kRates[] = {0., 0.05, 0.5, 0.95};
constexpr int kMaxKernels = 64;
constexpr int kMaxDelay = 14;  // log2 of steps, and one more

uint3 position_in(const Dim3& extent, int index) {
  return {static_cast<unsigned>(index % extent.x),
          static_cast<unsigned>(index / extent.x % extent.y),
          static_cast<unsigned>(index / extent.x / extent.y)};
}
dim3 extent(const Dim3& of) {
  return {static_cast<unsigned>(of.x), static_cast<unsigned>(of.y), static_cast<unsigned>(of.z)};
}

Grid make_grid(const Kernel& kernel, const std::deque<Grid>& earlier) {
  const Launch& launch = kernel.launch;
  const int threads = launch.block.count();
  DSV4_CHECK(threads > 0 && threads <= kMaxWarps * kWarpLanes && launch.grid.count() > 0 &&
                 launch.cluster > 0 && launch.grid.x % launch.cluster == 0 && launch.resident > 0,
             "{} threads, {} CTAs, {} of them along x, in clusters of {}", threads,
             launch.grid.count(), launch.grid.x, launch.cluster);
  const auto number = static_cast<int>(earlier.size());
  Grid grid{
      .kernel = &kernel, .number = number, .num_clusters = launch.grid.count() / launch.cluster};
  grid.before = launch.pdl && number > 0 ? earlier.back().before : (uint64_t{1} << number) - 1;
  grid.after_wait = grid.before;
  return grid;
}

}  // namespace

Machine& machine() {
  return *the_machine;
}

Thread* kernel_thread() {
  if (the_machine == nullptr || the_machine->current == nullptr) return nullptr;
  Thread& thread = *the_machine->current;
  return thread.ended || thread.instructions > 0 ? nullptr : &thread;
}

Machine::Machine(const std::vector<Kernel>& kernels, uint64_t seed)
    : rng(seed), rate(kRates[seed % std::size(kRates)]) {
  DSV4_CHECK(kernels.size() <= kMaxKernels, "{} kernels in a stream, of {}", kernels.size(),
             kMaxKernels);
  for (const Kernel& kernel : kernels) {
    grids.push_back(make_grid(kernel, grids));
    accesses.tracking |= grids.size() > 1 && kernel.launch.pdl;
  }
}

void Machine::run() {
  while (!std::all_of(grids.begin(), grids.end(), [](const Grid& g) { return g.complete(); })) {
    if (!advance_grids()) step();
  }
}

// A kernel with pdl starts at once or later; at the latest when no thread can continue.
bool Machine::may_start(Grid& grid) {
  const auto is_complete = [](const Grid& other) { return other.complete(); };
  const auto end = grids.begin() + grid.number;
  if (grid.next > 0 || std::all_of(grids.begin(), end, is_complete)) return true;
  const Grid& previous = grids[static_cast<size_t>(grid.number) - 1];
  if (!grid.launch().pdl || previous.triggered < previous.launch().grid.count()) return false;
  if (grid.delay < 0) grid.delay = rng.below(2) * (int64_t{1} << rng.below(kMaxDelay));
  if (runnable_ == 0) grid.delay = 0;
  return grid.delay-- == 0;
}

bool Machine::advance_grids() {
  for (Grid& grid : grids) {
    if (grid.next == grid.num_clusters || grid.live == grid.launch().resident) continue;
    if (!may_start(grid)) continue;
    if (grid.launch().pdl && grid.number > 0) {
      const Grid& previous = grids[static_cast<size_t>(grid.number) - 1];
      grid.before |= previous.before;
      if (previous.waited && previous.waited_first) grid.before |= previous.after_wait;
    }
    start_cluster(grid);
    return true;
  }
  return false;
}

void Machine::start_cluster(Grid& grid) {
  const Launch& launch = grid.launch();
  Cluster& cluster = clusters_.emplace_back();
  cluster.grid = &grid;
  cluster.index = grid.next++;
  ++grid.live;
  cluster.running = launch.block.count() * launch.cluster;
  for (int rank = 0; rank < launch.cluster; ++rank) {
    Cta& cta = cluster.ctas.emplace_back();
    cta.cluster = &cluster;
    cta.index = cluster.index * launch.cluster + rank;
    cta.rank = rank;
    cta.position = position_in(launch.grid, cta.index);
    start_shared_memory(cta);
    for (size_t i = 0; i < cta.barriers.size(); ++i)
      cta.barriers[i].name = fmt::format("barrier {}", i);
    start_threads(cta);
  }
  if (rng.below(2) == 0) favor(cluster.ctas[0].threads[0]);
}

void Machine::start_threads(Cta& cta) {
  const Kernel& kernel = *cta.cluster->grid->kernel;
  const int threads = kernel.launch.block.count();
  cta.running = threads;
  for (int i = 0; i < threads; ++i) {
    cta.threads.push_back({.cta = &cta,
                           .index = i,
                           .position = position_in(kernel.launch.block, i),
                           .fiber = fibers_.start([this, &kernel] { thread_body(kernel); })});
  }
  for (int i = 0; i * kWarpLanes < threads; ++i)
    cta.warps.push_back(
        {.cta = &cta, .index = i, .size = std::min(kWarpLanes, threads - i * kWarpLanes)});
  cta.issued.resize(static_cast<size_t>(ceil_div(threads, kWarpLanes * kGroupWarps)));
  for (Thread& thread : cta.threads) make_runnable(thread);
}

// Makes `thread` the one whose instructions run.
void Machine::enter(Thread& thread) {
  current = &thread;
  bring_variables(*thread.cta);
}

void Machine::step() {
  const bool idle = runnable_ == 0;
  if ((idle || is_likely()) && advance_background()) return;
  if (idle) fail(ErrorCode::kInvalidArgument, "no thread can continue\n{}", deadlock());
  enter(pick());
  threadIdx = current->position;
  blockIdx = current->cta->position;
  blockDim = extent(launch_of(*current->cta).block);
  gridDim = extent(launch_of(*current->cta).grid);
  fibers_.resume(current->fiber);
  if (error) std::rethrow_exception(error);
  if (ended_ != nullptr) end_cluster(*std::exchange(ended_, nullptr));
}

void Machine::thread_body(const Kernel& kernel) {
  try {
    kernel.body();
    end_thread(*current);
  } catch (...) {
    error = std::current_exception();
  }
}

void Machine::end_thread(Thread& thread) {
  if (warp().arrived > 0) kernel_error("ends while its warp is at {}", warp().op);
  if (thread.cluster_arrived) kernel_error("ends between cluster_arrive and cluster_wait");
  if (thread.bulk_read < thread.bulk_stored)
    kernel_error("ends before its tensor stores have read shared memory");
  thread.ended = true;
  if (--thread.cta->running == 0) trigger(*thread.cta);
  if (--thread.cta->cluster->running == 0) ended_ = thread.cta->cluster;
}

void Machine::trigger(Cta& cta) {
  if (std::exchange(cta.triggered, true)) return;
  ++grid().triggered;
  if (!current->knows.waited) grid().waited_first = false;
}

// Every thread has ended; shared memory is gone with its CTA, but cp.async and wgmma may go on.
void Machine::complete_operations(Cluster& cluster) {
  for (Cta& cta : cluster.ctas) {
    for (Thread& thread : cta.threads) {
      enter(thread);
      for (const Copy& copy : thread.copies) {
        if (!copy.is_cp_async() && copy.kind != Copy::kTensorStore)
          fail(ErrorCode::kInvalidArgument,
               "CTA {} has ended before a bulk copy or st.async of thread {}", cta.index,
               thread.index);
      }
      while (!thread.copies.empty()) perform_copy(thread, 0);
    }
    for (Warp& warp : cta.warps) {
      enter(cta.threads[static_cast<size_t>(warp.index * kWarpLanes)]);
      while (!warp.products.empty()) perform_product(warp);
      const size_t group = cta.issued[static_cast<size_t>(warp.index / kGroupWarps)].size();
      if (warp.issued != group)
        fail(ErrorCode::kInvalidArgument, "CTA {} warp {} executed {} wgmma of {}", cta.index,
             warp.index, warp.issued, group);
    }
  }
}

void Machine::end_cluster(Cluster& cluster) {
  complete_operations(cluster);
  forget(cluster);
  Grid& grid = *cluster.grid;
  --grid.live;
  clusters_.remove_if([&](const Cluster& other) { return &other == &cluster; });
  if (grid.complete()) wake(&grid);
}

void launch_stream(const std::vector<Kernel>& kernels, uint64_t seed) {
  Machine all(kernels, seed);
  Machine* const before = std::exchange(the_machine, &all);
  try {
    all.run();
  } catch (...) {
    the_machine = before;
    throw;
  }
  the_machine = before;
}

void launch(const Launch& how, const std::function<void()>& kernel) {
  launch_stream({{how, kernel}}, how.seed);
}

}  // namespace dsv4::emulator
