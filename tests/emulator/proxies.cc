// What wgmma may read and what bulk copies may overwrite. They access shared memory through the
// async proxy; ordinary stores, stmatrix and cp.async write through the generic proxy. On the path
// of barriers from the write to the access there has to be a fence.proxy.async, by the writer, by
// the reader, or by a thread between them (PTX ISA, memory consistency model, proxies).

#include <algorithm>
#include <span>

#include "tests/emulator/instructions.h"
#include "tests/emulator/machine.h"

namespace dsv4::emulator {
namespace {

void add(Writes& to, const Writes& from) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = std::max(to[i], from[i]);
}
void add(Knowledge& to, const Knowledge& from) {
  add(to.happened, from.happened);
  add(to.fenced, from.fenced);
  to.waited |= from.waited;
}

size_t warp_number(int thread) {
  return static_cast<size_t>(thread / kWarpLanes);
}
std::span<Thread> lanes_of(const Warp& warp) {
  return std::span(warp.cta->threads)
      .subspan(static_cast<size_t>(warp.index * kWarpLanes), static_cast<size_t>(warp.size));
}

uint32_t number_write(const Thread& thread, uint32_t address) {
  Cta& cta = *thread.cta;
  const uint32_t number = ++cta.written[warp_number(thread.index)];
  cta.writes[(address - kSharedBase) / 16] = {thread.index, number};
  return number;
}
void add_copies(Knowledge& to, const Thread& thread) {
  uint32_t& happened = to.happened[warp_number(thread.index)];
  happened = std::max(happened, thread.copied);
}

}  // namespace

void note_write(Thread& thread, uint32_t address) {
  thread.knows.happened[warp_number(thread.index)] = number_write(thread, address);
}
void note_copy(Thread& thread, uint32_t address) {
  thread.copied = number_write(thread, address);
}

void fence_proxy_async() {
  const Instruction instruction;
  Knowledge& knows = instruction.thread.knows;
  knows.fenced = knows.happened;
}

// A barrier passes on to the threads that wait what the arriving threads know.
void release(const Thread& thread, uintptr_t barrier) {
  add(thread.cta->released[barrier], thread.knows);
}
void acquire(Thread& thread, uintptr_t barrier) {
  add(thread.knows, thread.cta->released[barrier]);
}
void acquire_copies(Thread& thread) {
  add_copies(thread.knows, thread);
}
void release_copies(const Thread& thread, uintptr_t barrier) {
  release(thread, barrier);
  add_copies(thread.cta->released[barrier], thread);
}
void share_knowledge(Warp& warp) {
  Knowledge all;
  for (const Thread& lane : lanes_of(warp)) add(all, lane.knows);
  for (Thread& lane : lanes_of(warp)) lane.knows = all;
}

// The writes that every lane knows to be fenced.
Writes fenced_for(const Warp& warp) {
  Writes all = lanes_of(warp)[0].knows.fenced;
  for (const Thread& lane : lanes_of(warp)) {
    for (size_t i = 0; i < all.size(); ++i) all[i] = std::min(all[i], lane.knows.fenced[i]);
  }
  return all;
}

void check_fenced(std::string_view what, const Cta& cta, uint32_t address, const Writes& fenced) {
  const Cta::Write& write = cta.writes[(address - kSharedBase) / 16];
  if (write.number > fenced[warp_number(write.writer)])
    kernel_error("{} what thread {} wrote at {} without fence_proxy_async", what, write.writer,
                 address);
}

}  // namespace dsv4::emulator
