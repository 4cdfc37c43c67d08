// Which thread runs next, and which asynchronous operation completes next.

#include <algorithm>

#include "tests/emulator/instructions.h"
#include "tests/emulator/machine.h"

namespace dsv4::emulator {
namespace {

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

void Machine::make_runnable(Thread& thread) {
  Warp& of = warp_of(thread);
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

// The warp of `thread`, or its warpgroup.
void Machine::favor(const Thread& thread) {
  Warp& of = warp_of(thread);
  const auto warps = static_cast<int>(of.cta->warps.size());
  const int first = of.index - of.index % kGroupWarps;
  favorite_ = &of.cta->warps[static_cast<size_t>(first)];
  favored_warps_ = std::min(kGroupWarps, warps - first);
  if (rng.below(2) == 0) favorite_ = &of, favored_warps_ = 1;
  favored_steps_ = 1 << rng.below(kLongestRun);
}

// One of the favorites that can run.
Warp* Machine::favored() {
  if (favorite_ == nullptr || favored_steps_-- <= 0) return nullptr;
  const auto first = static_cast<int>(rng.below(favored_warps_));
  for (int i = 0; i < favored_warps_; ++i) {
    Warp& of = favorite_[(first + i) % favored_warps_];
    if (!of.runnable.empty()) return &of;
  }
  return nullptr;
}

// A uniformly random order alone would keep threads close together. So now and then a warp or a
// warpgroup runs ahead of all others, for some steps or until it has to wait; preferably one that a
// barrier has just released, because the thread that completed the barrier may have done so too
// early.
Thread& Machine::pick() {
  Warp* of = favored();
  if (of == nullptr) {
    of = &any_ready();
    favor(*of->runnable.front());
  }
  --runnable_;
  return *take_any(of->runnable, rng);
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

void Machine::wake(const void* where, uint32_t address, bool answer) {
  Thread* woken = nullptr;
  for (Cluster& cluster : clusters_) {
    for (Cta& cta : cluster.ctas) {
      for (Thread& thread : cta.threads) {
        if (thread.runs || thread.waits.where != where || thread.waits.address != address) continue;
        wake(thread, answer);
        if (woken == nullptr || rng.below(kWarpLanes) == 0) woken = &thread;
      }
    }
  }
  if (woken != nullptr && rng.below(2) == 0) favor(*woken);
}

bool Machine::is_last_lane(std::string_view op, void* mine) {
  Warp& here = warp();
  if (here.arrived > 0 && here.op != op)
    kernel_error("is at {}, other lanes of its warp are at {}", op, here.op);
  const auto first = static_cast<size_t>(here.index * kWarpLanes);
  for (size_t i = first; i < first + static_cast<size_t>(here.size); ++i) {
    if (here.cta->threads[i].ended)
      kernel_error("is at {}, but thread {} of its warp has ended", op, i);
  }
  here.op = op;
  here.lanes[static_cast<size_t>(current->index % kWarpLanes)] = mine;
  if (++here.arrived == here.size) return true;
  wait({.kind = Wait::kLanes, .where = &here});
  return false;
}

void Machine::release_lanes() {
  Warp& here = warp();
  here.arrived = 0;
  const auto first = static_cast<size_t>(here.index * kWarpLanes);
  for (size_t i = first; i < first + static_cast<size_t>(here.size); ++i) {
    if (&here.cta->threads[i] != current) wake(here.cta->threads[i]);
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
void Machine::forget(const Cluster& cluster) {
  const auto inside = [&](const auto* of) { return of->cta->cluster == &cluster; };
  std::erase_if(ready_, inside);
  std::erase_if(copying_, inside);
  std::erase_if(multiplying_, inside);
  if (favorite_ != nullptr && inside(favorite_)) favorite_ = nullptr;
  if (in_place_ != nullptr && in_place_->cluster == &cluster) in_place_ = nullptr;
  current = nullptr;
}

// A thread that has waited for the last of its copies or products is still in the lists.
bool Machine::advance_background() {
  const size_t some = copying_.size() + multiplying_.size();
  if (some == 0) return false;
  if (static_cast<size_t>(rng.below(static_cast<int64_t>(some))) < copying_.size()) {
    Thread& thread = *take_any(copying_, rng);
    enter(thread);
    const auto left = static_cast<int64_t>(thread.copies.size());
    if (left > 0) perform_copy(thread, static_cast<size_t>(rng.below(left)));
    thread.copying = false;
    if (!thread.copies.empty()) remember(thread);
  } else {
    Warp& of = *take_any(multiplying_, rng);
    enter(of.cta->threads[static_cast<size_t>(of.index * kWarpLanes)]);
    if (!of.products.empty()) perform_product(of);
    of.multiplying = false;
    if (!of.products.empty()) remember(of);
  }
  return true;
}

}  // namespace dsv4::emulator
