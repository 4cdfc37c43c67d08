// mbarriers and copies in the background.

#include <algorithm>
#include <cstring>

#include "dsv4/base/error.h"
#include "tests/emulator/instructions.h"
#include "tests/emulator/machine.h"

namespace dsv4::emulator {
namespace {

// The 8 bytes of an mbarrier: where it is, so that who writes over it is found.
struct Mbarrier {
  static constexpr uint64_t kMark = 0x2ba;
  uint64_t mark : 10, phase : 1, missing : 14, expected : 14;
  int64_t bytes : 25;  // expected and not there yet; negative while copies are ahead

  void count(int64_t more) {
    constexpr int64_t kMost = (1 << 20) - 1;  // PTX ISA, mbarrier, tx-count
    const int64_t now = bytes + more;
    if (now > kMost || now < -kMost) kernel_error("an mbarrier counts {} bytes", now);
    bytes = now;
  }
};

// Of any block.
Mbarrier& known_mbarrier(void* at) {
  auto& state = *static_cast<Mbarrier*>(at);
  if (state.mark != Mbarrier::kMark) kernel_error("uses an mbarrier that is not initialised");
  return state;
}
Mbarrier& mbarrier(void* at) {
  machine().shared("mbarrier", *machine().self().block, shared_address(at), 8, 8);
  return known_mbarrier(at);
}

void end_phase_if_done(Mbarrier& state) {
  if (state.missing > 0 || state.bytes != 0) return;
  state.phase ^= 1;
  state.missing = state.expected;
  machine().wake(&state);
}

void arrive(Mbarrier& state) {
  if (state.missing == 0) kernel_error("arrives once more than an mbarrier expects");
  --state.missing;
  end_phase_if_done(state);
}

}  // namespace

std::string describe_mbarrier(const void* barrier) {
  const auto& state = *static_cast<const Mbarrier*>(barrier);
  return fmt::format("phase {}, {} arrivals of {} and {} bytes are missing", uint64_t{state.phase},
                     uint64_t{state.missing}, uint64_t{state.expected}, int64_t{state.bytes});
}

void mbarrier_init(void* barrier, uint32_t arrivals) {
  machine().shared("mbarrier.init", *machine().self().block, shared_address(barrier), 8, 8);
  if (arrivals == 0 || arrivals >= 1u << 14)
    kernel_error("initialises an mbarrier for {} arrivals", arrivals);
  *static_cast<Mbarrier*>(barrier) = {Mbarrier::kMark, 0, arrivals, arrivals, 0};
}

void mbarrier_arrive(void* barrier) {
  pause();
  Mbarrier& state = mbarrier(barrier);
  tell(machine().self(), barrier);
  arrive(state);
}

void mbarrier_expect(void* barrier, uint32_t bytes) {
  pause();
  mbarrier(barrier).count(bytes);
}

void mbarrier_arrive_after_copies(void* barrier) {
  mbarrier(barrier);
  Thread& self = machine().self();
  self.copies.push_back({.arrival = barrier});
  machine().remember(self);
  pause();
}

void mbarrier_arrive_at(void* barrier, uint32_t rank) {
  pause();
  Machine& all = machine();
  mbarrier(barrier);
  Mbarrier& state = known_mbarrier(all.in_cluster("arrives", barrier, rank));
  // What is noted are writes to the writer's own block.
  if (barrier == &state) tell(all.self(), barrier);
  arrive(state);
}

// A phase that ended and another one since are not told apart, as on the device.
void mbarrier_wait(void* barrier, uint32_t parity) {
  pause();
  while (mbarrier(barrier).phase == (parity & 1))
    machine().wait({.kind = Wait::kMbarrier, .where = barrier, .parity = parity});
  learn(machine().self(), barrier);
}

// Until it is performed nobody knows what is at its destination.
void copy(uint32_t to, const void* from, int bytes, bool valid) {
  Machine& all = machine();
  Thread& self = all.self();
  const auto size = static_cast<size_t>(bytes);
  std::byte* place = all.shared("cp.async", *self.block, to, size, size);
  if (reinterpret_cast<uintptr_t>(from) % size != 0)
    kernel_error("cp.async from {}, which is not on {}", from, size);
  std::memset(place, 0xff, size);
  self.copies.push_back(
      {.to = place, .from = valid ? static_cast<const std::byte*>(from) : nullptr, .bytes = size});
  all.remember(self);
  all.pause();
}

void store_zeros(uint32_t to) {
  Thread& self = machine().self();
  std::byte* place = machine().shared("a store", *self.block, to, 16, 16);
  std::memset(place, 0, 16);
  note_write(self, place);
}

void load(const void* from, void* to, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(from) % bytes != 0)
    kernel_error("load of {} bytes from {}: not on {}", bytes, from, bytes);
  std::memcpy(to, from, bytes);
}

// Its writes come by the way that wgmma reads by: what others wrote there has to be fenced.
void copy_bulk(uint32_t to, const void* from, uint32_t bytes, void* barrier) {
  Machine& all = machine();
  Thread& self = all.self();
  std::byte* place = all.shared("bulk copy", *self.block, to, bytes, 16);
  if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    kernel_error("bulk copy of {} bytes from {}: not on 16", bytes, from);
  mbarrier(barrier);
  const auto first = kSharedBase + static_cast<uint32_t>(place - self.block->memory->data());
  for (uint32_t i = 0; i < bytes; i += 16) {
    check_fenced("a bulk copy overwrites", *self.block, first + i, self.knows.fenced);
    self.block->writes[(first + i - kSharedBase) / 16] = {};  // what it brings needs no fence
  }
  std::memset(place, 0xff, bytes);
  self.copies.push_back(
      {.to = place, .from = static_cast<const std::byte*>(from), .bytes = bytes, .told = barrier});
  all.remember(self);
  all.pause();
}

void store_at(void* place, uint32_t rank, const void* value, size_t bytes, void* barrier) {
  Machine& all = machine();
  Thread& self = all.self();
  all.shared("st.async", *self.block, shared_address(place), bytes, bytes);
  mbarrier(barrier);
  Copy store{.to = static_cast<std::byte*>(all.in_cluster("stores", place, rank)),
             .bytes = bytes,
             .told = all.in_cluster("counts bytes", barrier, rank),
             .rank = rank};
  std::memcpy(store.value.data(), value, bytes);
  std::memset(store.to, 0xff, bytes);
  self.copies.push_back(store);
  all.remember(self);
  all.pause();
}

void perform_copy(Thread& thread, size_t which) {
  auto& copies = thread.copies;
  // An arrival is for every cp.async before it.
  if (copies[which].arrival != nullptr) {
    const auto begin = copies.begin(), end = begin + static_cast<ptrdiff_t>(which);
    const auto before = std::find_if(begin, end, [](const Copy& c) { return c.is_cp_async(); });
    which = static_cast<size_t>(before - begin);
  }
  const Copy copy = copies[which];
  copies.erase(copies.begin() + static_cast<ptrdiff_t>(which));
  if (copy.arrival != nullptr) {
    Mbarrier& state = mbarrier(copy.arrival);
    tell_of_copies(thread, copy.arrival);
    arrive(state);
    return;
  }
  if (copy.rank) {
    if (machine().blocks[*copy.rank].running == 0)
      kernel_error("stores in block {} of its cluster, which has ended", *copy.rank);
    std::memcpy(copy.to, copy.value.data(), copy.bytes);
  } else {
    copy.from == nullptr ? std::memset(copy.to, 0, copy.bytes)
                         : std::memcpy(copy.to, copy.from, copy.bytes);
  }
  if (copy.told != nullptr) {
    Mbarrier& state = known_mbarrier(copy.told);
    state.count(-static_cast<int64_t>(copy.bytes));
    end_phase_if_done(state);
  } else {
    note_copy(thread, copy.to);
  }
}

void wait_for_copies() {
  Thread& self = machine().self();
  // Of bulk copies it knows nothing.
  for (size_t i = 0; i < self.copies.size();) {
    if (self.copies[i].told != nullptr) {
      ++i;
    } else {
      perform_copy(self, i);
    }
  }
  learn_of_copies(self);
  pause();
}

}  // namespace dsv4::emulator
