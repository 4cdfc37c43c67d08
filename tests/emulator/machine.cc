#include "tests/emulator/machine.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "dsv4/base/bits.h"
#include "tests/emulator/builtins.h"
#include "tests/emulator/instructions.h"

namespace dsv4::emulator {
namespace {

Machine* the_machine = nullptr;

// As late as can be, rarely, often, nearly at once.
constexpr double kRates[] = {0., 0.05, 0.5, 0.95};
constexpr double kPause = 0.1;
constexpr int kLongestRun = 20;  // log2, and one more

template <class T>
T take_any(std::vector<T>& from, Rng& rng) {
  const auto i = static_cast<size_t>(rng.below(static_cast<int64_t>(from.size())));
  std::swap(from[i], from.back());
  const T taken = from.back();
  from.pop_back();
  return taken;
}

}  // namespace

Machine& machine() {
  return *the_machine;
}

std::string thread_name(const Thread& thread) {
  return fmt::format("block {} thread {}:", thread.block->index, thread.index);
}

Machine::Machine(const Launch& launch_)
    : launch(launch_),
      rng(launch_.seed),
      rate(kRates[launch_.seed % std::size(kRates)]),
      fibers_(launch_.block * launch_.cluster) {
  DSV4_CHECK(launch.block % kWarpLanes == 0 && launch.grid % launch.cluster == 0,
             "{} threads, {} blocks in clusters of {}", launch.block, launch.grid, launch.cluster);
  gridDim.x = static_cast<unsigned>(launch.grid);
  blockDim.x = static_cast<unsigned>(launch.block);
}

void Machine::run(const std::function<void()>& kernel) {
  for (; cluster_index < launch.grid / launch.cluster; ++cluster_index) run_cluster(kernel);
}

void Machine::run_cluster(const std::function<void()>& kernel) {
  blocks.clear();
  ready_.clear();
  favourite_ = nullptr;
  for (int rank = 0; rank < launch.cluster; ++rank) {
    Block& block = blocks.emplace_back();
    block.index = cluster_index * launch.cluster + rank;
    block.rank = rank;
    block.running = launch.block;
    block.memory = std::make_unique<Pages>(std::max<size_t>(launch.shared, 1));
    std::memset(block.memory->data(), 0xff, block.memory->size());
    block.writes.resize(static_cast<size_t>(ceil_div(static_cast<int64_t>(launch.shared), 16)));
    for (size_t i = 0; i < block.barriers.size(); ++i)
      block.barriers[i].name = fmt::format("barrier {}", i);
    for (int i = 0; i < launch.block; ++i) block.threads.push_back({.block = &block, .index = i});
    for (int i = 0; i < launch.block / kWarpLanes; ++i)
      block.warps.push_back({.block = &block, .index = i});
    block.issued.resize(static_cast<size_t>(ceil_div(launch.block, kWarpLanes * kGroupWarps)));
    for (Thread& thread : block.threads) make_runnable(thread);
  }
  running_ = launch.block * launch.cluster;
  fibers_.start([this, &kernel](int) { thread_body(kernel); });
  while (running_ > 0) step();
  check_bulk_copies();
  while (advance_background()) {
  }
  check_ends();
}

void Machine::step() {
  const bool idle = runnable_ == 0;
  if ((idle || is_likely()) && advance_background()) return;
  if (idle) fail(ErrorCode::kInvalidArgument, "no thread can go on\n{}", deadlock());
  current = &pick();
  threadIdx.x = static_cast<unsigned>(current->index);
  blockIdx.x = static_cast<unsigned>(current->block->index);
  fibers_.resume(current->block->rank * launch.block + current->index);
  if (error_) std::rethrow_exception(error_);
}

void Machine::make_runnable(Thread& thread) {
  Warp& of = thread.block->warps[static_cast<size_t>(thread.index / kWarpLanes)];
  of.runnable.push_back(&thread);
  ++runnable_;
  if (!std::exchange(of.ready, true)) ready_.push_back(&of);
}

Warp& Machine::any_ready() {
  for (;;) {
    Warp* of = take_any(ready_, rng);
    of->ready = !of->runnable.empty();
    if (!of->ready) continue;
    ready_.push_back(of);
    return *of;
  }
}
// `thread` and who is near it.
void Machine::favour(const Thread& thread) {
  Warp& of = thread.block->warps[static_cast<size_t>(thread.index / kWarpLanes)];
  favourite_ = &of - of.index % kGroupWarps;
  favoured_warps_ = std::min<int>(
      kGroupWarps, launch.block / kWarpLanes - (of.index / kGroupWarps) * kGroupWarps);
  if (rng.below(2) == 0) favourite_ = &of, favoured_warps_ = 1;
  favoured_steps_ = 1 << rng.below(kLongestRun);
}
// Of the favourites one that can run.
Warp* Machine::favoured() {
  if (favourite_ == nullptr || favoured_steps_-- <= 0) return nullptr;
  const auto first = static_cast<int>(rng.below(favoured_warps_));
  for (int i = 0; i < favoured_warps_; ++i) {
    Warp& of = favourite_[(first + i) % favoured_warps_];
    if (!of.runnable.empty()) return &of;
  }
  return nullptr;
}
// Any order alone would keep threads close together. So now and then a warp or a warpgroup runs
// ahead of all others, for a few steps or until it has to wait; best when a barrier has just let
// it, because who opened it may not have done all that it should have.
Thread& Machine::pick() {
  Warp* of = favoured();
  if (of == nullptr) {
    of = &any_ready();
    favour(*of->runnable.front());
  }
  --runnable_;
  return *take_any(of->runnable, rng);
}

void Machine::thread_body(const std::function<void()>& kernel) {
  try {
    kernel();
    end_thread(*current);
  } catch (...) {
    error_ = std::current_exception();
  }
}

void Machine::end_thread(Thread& thread) {
  if (warp().arrived > 0) kernel_error("ends while its warp is at {}", warp().op);
  if (thread.cluster_arrived) kernel_error("ends between cluster_arrive and cluster_wait");
  thread.ended = true;
  --thread.block->running;
  --running_;
}

// Every thread has ended; shared memory is gone with its block.
void Machine::check_bulk_copies() {
  for (const Block& block : blocks) {
    for (const Thread& thread : block.threads) {
      for (const Copy& copy : thread.copies) {
        if (copy.told != nullptr)
          fail(ErrorCode::kInvalidArgument,
               "block {} has ended before a bulk copy or store of thread {}", block.index,
               thread.index);
      }
    }
  }
}

void Machine::check_ends() {
  for (const Block& block : blocks) {
    for (const Warp& warp : block.warps) {
      const size_t group = block.issued[static_cast<size_t>(warp.index / kGroupWarps)].size();
      if (warp.issued != group)
        fail(ErrorCode::kInvalidArgument, "block {} warp {} took part in {} wgmma of {}",
             block.index, warp.index, warp.issued, group);
    }
  }
}

void Machine::wait(const Wait& why) {
  current->waits = why;
  current->runs = false;
  fibers_.suspend();
}
void Machine::wake(Thread& thread, bool answer) {
  thread.answer = answer;
  thread.runs = true;
  make_runnable(thread);
}
void Machine::wake(const void* where, bool answer) {
  Thread* woken = nullptr;
  for (Block& block : blocks) {
    for (Thread& thread : block.threads) {
      if (thread.runs || thread.waits.where != where) continue;
      wake(thread, answer);
      if (woken == nullptr || rng.below(kWarpLanes) == 0) woken = &thread;
    }
  }
  if (woken != nullptr && rng.below(2) == 0) favour(*woken);
}

bool Machine::is_last_lane(std::string_view op, void* mine) {
  Warp& here = warp();
  if (here.arrived > 0 && here.op != op)
    kernel_error("is at {}, other lanes of its warp are at {}", op, here.op);
  const auto first = static_cast<size_t>(here.index * kWarpLanes);
  for (size_t i = first; i < first + kWarpLanes; ++i) {
    if (here.block->threads[i].ended)
      kernel_error("is at {}, but thread {} of its warp has ended", op, i);
  }
  here.op = op;
  here.lanes[static_cast<size_t>(current->index % kWarpLanes)] = mine;
  if (++here.arrived == kWarpLanes) return true;
  wait({.kind = Wait::kLanes, .where = &here});
  return false;
}
void Machine::release_lanes() {
  Warp& here = warp();
  here.arrived = 0;
  const auto first = static_cast<size_t>(here.index * kWarpLanes);
  for (size_t i = first; i < first + kWarpLanes; ++i) {
    if (&here.block->threads[i] != current) wake(here.block->threads[i]);
  }
}

void Machine::pause() {
  if (rng.uniform() >= kPause) return;
  make_runnable(*current);
  fibers_.suspend();
}

void Machine::remember(Thread& thread) {
  if (!std::exchange(thread.copying, true)) copying_.push_back(&thread);
}
void Machine::remember(Warp& of) {
  if (!std::exchange(of.multiplying, true)) multiplying_.push_back(&of);
}

// Who has waited for the last of its copies or products is still in the lists.
bool Machine::advance_background() {
  const size_t some = copying_.size() + multiplying_.size();
  if (some == 0) return false;
  if (static_cast<size_t>(rng.below(static_cast<int64_t>(some))) < copying_.size()) {
    Thread& thread = *take_any(copying_, rng);
    current = &thread;
    const auto left = static_cast<int64_t>(thread.copies.size());
    if (left > 0) perform_copy(thread, static_cast<size_t>(rng.below(left)));
    thread.copying = false;
    if (!thread.copies.empty()) remember(thread);
  } else {
    Warp& of = *take_any(multiplying_, rng);
    current = &of.block->threads[static_cast<size_t>(of.index * kWarpLanes)];
    if (!of.products.empty()) perform_product(of);
    of.multiplying = false;
    if (!of.products.empty()) remember(of);
  }
  return true;
}

std::byte* Machine::shared(std::string_view op, Block& block, uint32_t address, size_t size,
                           size_t align) {
  if (address / kSharedWindow == static_cast<uint32_t>(block.rank)) address %= kSharedWindow;
  if (address % align != 0) kernel_error("{}: shared address {} is not on {}", op, address, align);
  if (address < kSharedBase || address - kSharedBase + size > launch.shared)
    kernel_error("{}: shared address {} + {} is outside {} .. {}", op, address, size, kSharedBase,
                 kSharedBase + launch.shared);
  return block.memory->data() + (address - kSharedBase);
}

void* Machine::in_cluster(std::string_view op, const void* place, uint32_t rank) {
  if (rank >= blocks.size()) kernel_error("{} in block {} of its cluster", op, rank);
  const Block& there = blocks[rank];
  if (!current->cluster_met)
    kernel_error("{} in block {} without a cluster_wait before", op, there.index);
  if (there.running == 0) kernel_error("{} in block {}, which has ended", op, there.index);
  const std::byte* mine = current->block->memory->data();
  return there.memory->data() + (static_cast<const std::byte*>(place) - mine);
}

std::string Machine::reason(const Thread& thread) {
  const Wait& waits = thread.waits;
  if (waits.kind == Wait::kLanes) {
    const auto& lanes = *static_cast<const Warp*>(waits.where);
    return fmt::format("at {}, with {} lanes of {}", lanes.op, lanes.arrived, kWarpLanes);
  }
  if (waits.kind == Wait::kBarrier) {
    const auto& barrier = *static_cast<const Barrier*>(waits.where);
    return fmt::format("at {}, with {} threads of {}", barrier.name, barrier.arrived,
                       barrier.expected);
  }
  const auto* at = static_cast<const std::byte*>(waits.where);
  return fmt::format("for parity {} of the mbarrier at {}: {}", waits.parity,
                     kSharedBase + (at - thread.block->memory->data()), describe_mbarrier(at));
}

// Threads with the same reason together.
std::string Machine::deadlock() {
  std::map<std::string, std::vector<int>> waiting;
  for (const Block& block : blocks) {
    for (const Thread& thread : block.threads) {
      if (!thread.ended)
        waiting[fmt::format("block {}: waits {}", block.index, reason(thread))].push_back(
            thread.index);
    }
  }
  std::string report;
  for (const auto& [reason, threads] : waiting) {
    report += reason + "; threads";
    for (size_t i = 0; i < threads.size(); ++i) {
      size_t last = i;
      while (last + 1 < threads.size() && threads[last + 1] == threads[last] + 1) ++last;
      report += last == i ? fmt::format(" {}", threads[i])
                          : fmt::format(" {}-{}", threads[i], threads[last]);
      i = last;
    }
    report += '\n';
  }
  return report;
}

void launch(const Launch& how, const std::function<void()>& kernel) {
  Machine all(how);
  Machine* const before = std::exchange(the_machine, &all);
  try {
    all.run(kernel);
  } catch (...) {
    the_machine = before;
    throw;
  }
  the_machine = before;
}

}  // namespace dsv4::emulator
