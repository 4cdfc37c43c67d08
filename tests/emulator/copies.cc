// Copies in the background: cp.async, bulk copies and st.async.

#include <algorithm>
#include <cstring>

#include "dsv4/base/error.h"
#include "tests/emulator/instructions.h"
#include "tests/emulator/mbarrier.h"

namespace dsv4::emulator {
namespace {

void start(Copy copy) {
  Machine& all = machine();
  Thread& self = all.self();
  copy.waited = self.knows.waited;
  self.copies.push_back(copy);
  all.remember(self);
  all.pause();
}

void note_read(const Thread& thread, const Copy& copy) {
  machine().accesses.note(thread, copy.from, copy.bytes, false, copy.waited);
}

void move(const Thread& thread, const Copy& copy) {
  if (copy.kind == Copy::kTensorLoad) return load_box(thread, copy);
  std::byte* to = machine().at(copy.to);
  if (copy.kind == Copy::kStAsync) {
    std::memcpy(to, copy.value.data(), copy.bytes);
  } else if (copy.from == nullptr) {
    std::memset(to, 0, copy.bytes);
  } else {
    note_read(thread, copy);
    std::memcpy(to, copy.from, copy.bytes);
  }
}

}  // namespace

void overwrite(std::string_view what, const Thread& thread, const Place& to, uint32_t bytes) {
  for (uint32_t i = to.address; i < to.address + bytes; i += 16) {
    if (to.cta == thread.cta) check_fenced(what, *to.cta, i, thread.knows.fenced);
    to.cta->writes[(i - kSharedBase) / 16] = {};  // the new data need no fence
  }
  std::memset(machine().at(to), 0xff, bytes);
}

// Until it is performed the destination is undefined.
void copy(uint32_t to, const void* from, int bytes, bool valid) {
  const Instruction instruction;
  Machine& all = machine();
  const auto size = static_cast<size_t>(bytes);
  std::byte* place = all.shared("cp.async", all.cta(), to, size, size);
  if (reinterpret_cast<uintptr_t>(from) % size != 0)
    kernel_error("cp.async from {}, which is not a multiple of {}", from, size);
  std::memset(place, 0xff, size);
  start({.kind = Copy::kCpAsync,
         .to = {&all.cta(), to % kSharedWindow},
         .from = valid ? static_cast<const std::byte*>(from) : nullptr,
         .bytes = size,
         .group = all.self().copy_group});
}

void store_zeros(uint32_t to) {
  const Instruction instruction;
  Machine& all = machine();
  std::memset(all.shared("a store", all.cta(), to, 16, 16), 0, 16);
  note_write(instruction.thread, to % kSharedWindow);
}

void load(const void* from, void* to, size_t bytes) {
  const Instruction instruction;
  if (reinterpret_cast<uintptr_t>(from) % bytes != 0)
    kernel_error("load of {} bytes from {}: not a multiple of {}", bytes, from, bytes);
  machine().accesses.note(instruction.thread, from, bytes, false, instruction.thread.knows.waited);
  std::memcpy(to, from, bytes);
}

void copy_bulk(uint32_t to, const void* from, uint32_t bytes, void* barrier) {
  const Instruction instruction;
  Machine& all = machine();
  all.shared("bulk copy", all.cta(), to, bytes, 16);
  if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    kernel_error("bulk copy of {} bytes from {}: not multiples of 16", bytes, from);
  const Place place{&all.cta(), to % kSharedWindow};
  const Place full = mbarrier_place(barrier);
  overwrite("a bulk copy overwrites", instruction.thread, place, bytes);
  start({.kind = Copy::kBulk,
         .to = place,
         .from = static_cast<const std::byte*>(from),
         .bytes = bytes,
         .mbarrier = full});
}

void store_at(void* place, uint32_t rank, const void* value, size_t bytes, void* barrier) {
  const Instruction instruction;
  Machine& all = machine();
  const Place mine = all.place_of("st.async", place);
  all.shared("st.async", *mine.cta, mine.address, bytes, bytes);
  const Place full = mbarrier_place(barrier);
  Copy store{.kind = Copy::kStAsync,
             .to = all.in_cluster("stores", mine, rank),
             .bytes = bytes,
             .mbarrier = all.in_cluster("counts bytes", full, rank)};
  std::memcpy(store.value.data(), value, bytes);
  std::memset(all.at(store.to), 0xff, bytes);
  start(store);
}

void load_from(const void* place, uint32_t rank, void* to, size_t bytes) {
  const Instruction instruction;
  Machine& all = machine();
  const Place mine = all.place_of("cluster load", place);
  all.shared("cluster load", *mine.cta, mine.address, bytes, bytes);
  std::memcpy(to, all.at(all.in_cluster("loads", mine, rank)), bytes);
}

void perform_copy(Thread& thread, size_t which) {
  auto& copies = thread.copies;
  // An arrival comes after every cp.async before it.
  if (copies[which].kind == Copy::kArrival) {
    const auto begin = copies.begin(), end = begin + static_cast<ptrdiff_t>(which);
    const auto before =
        std::find_if(begin, end, [](const Copy& c) { return c.kind == Copy::kCpAsync; });
    which = static_cast<size_t>(before - begin);
  }
  const Copy copy = copies[which];
  copies.erase(copies.begin() + static_cast<ptrdiff_t>(which));
  if (copy.kind == Copy::kArrival) {
    release_copies(thread, copy.mbarrier.address);
    return arrive(copy.mbarrier);
  }
  if (copy.kind == Copy::kTensorStore) return store_box(thread, copy);
  if (copy.to.cta != thread.cta && copy.to.cta->running == 0)
    kernel_error("stores in CTA {} of its cluster, which has ended", copy.to.cta->rank);
  move(thread, copy);
  if (copy.kind == Copy::kCpAsync) return note_copy(thread, copy.to.address);
  mbarrier(copy.mbarrier).count(-static_cast<int64_t>(copy.bytes));
  end_phase_if_done(copy.mbarrier);
}

void commit_copies() {
  const Instruction instruction;
  ++instruction.thread.copy_group;
}

// Bulk copies are not among them, and neither are the last groups.
void wait_for_copies(int groups) {
  const Instruction instruction;
  Thread& self = instruction.thread;
  for (size_t i = 0; i < self.copies.size();) {
    const Copy& copy = self.copies[i];
    copy.kind == Copy::kCpAsync&& copy.group < self.copy_group - groups ? perform_copy(self, i)
                                                                        : void(++i);
  }
  acquire_copies(self);
  machine().pause();
}

void wait_for_copies() {
  const Instruction instruction;
  Thread& self = instruction.thread;
  for (size_t i = 0; i < self.copies.size();) {
    self.copies[i].is_cp_async() ? perform_copy(self, i) : void(++i);
  }
  acquire_copies(self);
  machine().pause();
}

}  // namespace dsv4::emulator
