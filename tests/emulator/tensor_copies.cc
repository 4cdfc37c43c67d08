// Tensor copies: boxes between global and shared memory, by cp.async.bulk.tensor.

#include <algorithm>
#include <bit>
#include <cstring>

#include "dsv4/base/error.h"
#include "tests/emulator/instructions.h"
#include "tests/emulator/mbarrier.h"
#include "tests/emulator/tensor_map.h"

namespace dsv4::emulator {
namespace {

constexpr uint32_t kChunk = 16, kAlign = 128;

uint32_t swizzled(uint32_t address, TmaSwizzle swizzle) {
  const auto chunks = static_cast<uint32_t>(swizzle_bytes(swizzle)) / kChunk;
  return chunks == 0 ? address : address ^ (address >> 7 & (chunks - 1)) << 4;
}

// Calls chunk(address, global, valid) for each 16 bytes of the box: their shared address, the
// address of their first element in the tensor, and a bit for each byte that is inside the tensor.
template <class Chunk>
void for_each_chunk(const TensorCopy& copy, uint32_t address, const Chunk& chunk) {
  const TmaBox& box = copy.box;
  const int64_t item = item_bytes(box.dtype), per_chunk = kChunk / item;
  const auto rank = static_cast<size_t>(box.rank);
  std::array<int64_t, TmaBox::kMaxRank> at{};  // in the box
  do {
    auto global = reinterpret_cast<intptr_t>(box.base);
    bool inside = true;
    for (size_t i = 0; i < rank; ++i) {
      const int64_t coordinate = copy.first[i] + at[i];
      global += coordinate * (i == 0 ? item : box.stride[i]);
      if (i > 0) inside &= coordinate >= 0 && coordinate < box.size[i];
    }
    uint32_t valid = 0;
    for (int64_t e = 0; e < per_chunk && inside; ++e) {
      const int64_t x = copy.first[0] + at[0] + e;
      if (x >= 0 && x < box.size[0]) valid |= ((1u << item) - 1) << (e * item);
    }
    chunk(swizzled(address, box.swizzle), global, valid);
    address += kChunk;
    at[0] += per_chunk;
    for (size_t i = 0; i + 1 < rank && at[i] == box.box[i]; ++i) at[i] = 0, ++at[i + 1];
  } while (at[rank - 1] < box.box[rank - 1]);
}

// Runs of valid bytes: run(first byte, count).
template <class Run>
void for_each_run(uint32_t valid, const Run& run) {
  while (valid != 0) {
    const auto first = static_cast<uint32_t>(std::countr_zero(valid));
    const auto count = static_cast<uint32_t>(std::countr_one(valid >> first));
    run(first, count);
    valid &= ~(((1u << count) - 1) << first);
  }
}

std::shared_ptr<TensorCopy> make_copy(std::string_view op, const void* map,
                                      std::initializer_list<int32_t> first, uint32_t address) {
  TmaBox box;
  try {
    box = description(*static_cast<const CUtensorMap*>(map));
  } catch (const Error& error) {
    kernel_error("{}: {}", op, error.what());
  }
  if (static_cast<size_t>(box.rank) != first.size())
    kernel_error("{}: {} coordinates for a tensor map of rank {}", op, first.size(), box.rank);
  auto copy = std::make_shared<TensorCopy>();
  copy->box = box;
  std::copy(first.begin(), first.end(), copy->first.begin());
  copy->bytes = static_cast<uint32_t>(item_bytes(box.dtype));
  for (size_t i = 0; i < first.size(); ++i) copy->bytes *= static_cast<uint32_t>(box.box[i]);
  machine().shared(op, machine().cta(), address, copy->bytes, kAlign);
  return copy;
}

void start(Copy copy) {
  Machine& all = machine();
  Thread& self = all.self();
  copy.waited = self.knows.waited;
  self.copies.push_back(copy);
  all.remember(self);
}

void read_source(const Copy& copy) {
  TensorCopy& tensor = *copy.tensor;
  if (!tensor.source.empty()) return;
  tensor.source.resize(tensor.bytes);
  const Place from = copy.to;
  std::byte* next = tensor.source.data();
  for_each_chunk(tensor, from.address, [&](uint32_t address, intptr_t, uint32_t) {
    std::memcpy(next, machine().at({from.cta, address}), kChunk);
    next += kChunk;
  });
}

// Groups that are closed and older than the last `groups` of them.
template <class Perform>
void wait_for_groups(int groups, const Perform& perform) {
  Thread& self = machine().self();
  for (size_t i = 0; i < self.copies.size();) {
    const Copy& copy = self.copies[i];
    const bool old = copy.kind == Copy::kTensorStore && copy.group < self.bulk_group - groups;
    if (!old || !perform(i)) ++i;
  }
  self.bulk_read = std::max(self.bulk_read, self.bulk_group - groups);
  machine().pause();
}

}  // namespace

void copy_tensor(uint32_t to, const void* map, std::initializer_list<int32_t> first,
                 void* barrier) {
  const Instruction instruction;
  const auto tensor = make_copy("tensor copy", map, first, to);
  const Place place{&machine().cta(), to % kSharedWindow};
  const Place full = mbarrier_place(barrier);
  overwrite("a tensor copy overwrites", instruction.thread, place, tensor->bytes);
  start({.kind = Copy::kTensorLoad,
         .to = place,
         .bytes = tensor->bytes,
         .mbarrier = full,
         .tensor = tensor});
  machine().pause();
}

void copy_tensor_to(uint16_t ctas, uint32_t to, const void* map,
                    std::initializer_list<int32_t> first, void* barrier) {
  const Instruction instruction;
  Machine& all = machine();
  const auto tensor = make_copy("tensor copy", map, first, to);
  const Place mine{&all.cta(), to % kSharedWindow};
  const Place full = mbarrier_place(barrier);
  for (uint32_t rank = 0; rank < 16; ++rank) {
    if ((ctas >> rank & 1) == 0) continue;
    const Place place = all.in_cluster("tensor copy", mine, rank);
    overwrite("a tensor copy overwrites", instruction.thread, place, tensor->bytes);
    start({.kind = Copy::kTensorLoad,
           .to = place,
           .bytes = tensor->bytes,
           .mbarrier = all.in_cluster("counts bytes", full, rank),
           .tensor = tensor});
  }
  all.pause();
}

void load_box(const Thread& thread, const Copy& copy) {
  for_each_chunk(*copy.tensor, copy.to.address,
                 [&](uint32_t address, intptr_t global, uint32_t valid) {
                   std::byte* to = machine().at({copy.to.cta, address});
                   std::memset(to, 0, kChunk);
                   for_each_run(valid, [&](uint32_t begin, uint32_t count) {
                     const void* from = reinterpret_cast<const void*>(global + begin);
                     machine().accesses.note(thread, from, count, false, copy.waited);
                     std::memcpy(to + begin, from, count);
                   });
                 });
}

void store_tensor(const void* map, std::initializer_list<int32_t> first, uint32_t from) {
  const Instruction instruction;
  const auto tensor = make_copy("tensor store", map, first, from);
  const Place place{&machine().cta(), from % kSharedWindow};
  for (uint32_t i = 0; i < tensor->bytes; i += kChunk)
    check_fenced("a tensor store reads", *place.cta, place.address + i,
                 instruction.thread.knows.fenced);
  instruction.thread.bulk_stored = instruction.thread.bulk_group + 1;
  start({.kind = Copy::kTensorStore,
         .to = place,
         .bytes = tensor->bytes,
         .tensor = tensor,
         .group = instruction.thread.bulk_group});
  machine().pause();
}

void store_box(const Thread& thread, const Copy& copy) {
  read_source(copy);
  const std::byte* next = copy.tensor->source.data();
  for_each_chunk(*copy.tensor, copy.to.address, [&](uint32_t, intptr_t global, uint32_t valid) {
    for_each_run(valid, [&](uint32_t begin, uint32_t count) {
      void* to = reinterpret_cast<void*>(global + begin);
      machine().accesses.note(thread, to, count, true, copy.waited);
      std::memcpy(to, next + begin, count);
    });
    next += kChunk;
  });
}

void bulk_commit() {
  const Instruction instruction;
  ++instruction.thread.bulk_group;
}

void bulk_wait(int groups) {
  const Instruction instruction;
  wait_for_groups(groups, [&](size_t i) {
    perform_copy(instruction.thread, i);
    return true;
  });
}

// Reads the sources; what is written to global memory may still come later.
void bulk_wait_read(int groups) {
  const Instruction instruction;
  wait_for_groups(groups, [&](size_t i) {
    read_source(instruction.thread.copies[i]);
    return false;
  });
}

}  // namespace dsv4::emulator
