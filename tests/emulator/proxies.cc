// What wgmma may read and bulk copies overwrite. They look at shared memory by another way than
// what wrote it, so on the path of barriers from the write to them there has to be a
// fence_proxy_async, by whomever: the writer, the reader, or somebody between them (PTX ISA, memory
// consistency model, proxies).

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
}

size_t warp_of(int thread) {
  return static_cast<size_t>(thread / kWarpLanes);
}
std::span<Thread> lanes_of(const Warp& warp) {
  return std::span(warp.block->threads)
      .subspan(static_cast<size_t>(warp.index * kWarpLanes), kWarpLanes);
}

uint32_t number_write(const Thread& thread, const std::byte* to) {
  Block& block = *thread.block;
  const uint32_t number = ++block.written[warp_of(thread.index)];
  block.writes[static_cast<size_t>(to - block.memory->data()) / 16] = {thread.index, number};
  return number;
}
// And its copies so far.
void add_copies(Knowledge& to, const Thread& thread) {
  uint32_t& happened = to.happened[warp_of(thread.index)];
  happened = std::max(happened, thread.copied);
}

}  // namespace

void note_write(Thread& thread, const std::byte* to) {
  thread.knows.happened[warp_of(thread.index)] = number_write(thread, to);
}
void note_copy(Thread& thread, const std::byte* to) {
  thread.copied = number_write(thread, to);
}

void fence_proxy_async() {
  Knowledge& knows = machine().self().knows;
  knows.fenced = knows.happened;
}

// Release and acquire: who has waited knows what they knew who arrived.
void tell(const Thread& thread, const void* barrier) {
  add(thread.block->told[barrier], thread.knows);
}
void learn(Thread& thread, const void* barrier) {
  add(thread.knows, thread.block->told[barrier]);
}
void learn_of_copies(Thread& thread) {
  add_copies(thread.knows, thread);
}
void tell_of_copies(const Thread& thread, const void* barrier) {
  tell(thread, barrier);
  add_copies(thread.block->told[barrier], thread);
}
void share_knowledge(Warp& warp) {
  Knowledge all;
  for (const Thread& lane : lanes_of(warp)) add(all, lane.knows);
  for (Thread& lane : lanes_of(warp)) lane.knows = all;
}

// What every lane knows to be fenced.
Writes fenced_for(const Warp& warp) {
  Writes all = lanes_of(warp)[0].knows.fenced;
  for (const Thread& lane : lanes_of(warp)) {
    for (size_t i = 0; i < all.size(); ++i) all[i] = std::min(all[i], lane.knows.fenced[i]);
  }
  return all;
}

void check_fenced(std::string_view what, const Block& block, uint32_t address,
                  const Writes& fenced) {
  const Block::Write& write = block.writes[(address - kSharedBase) / 16];
  if (write.number > fenced[warp_of(write.writer)])
    kernel_error("{} what thread {} wrote at {} without fence_proxy_async", what, write.writer,
                 address);
}

}  // namespace dsv4::emulator
