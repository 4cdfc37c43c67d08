// mbarriers and copies in the background.

#include <cstring>

#include "tests/emulator/instructions.h"
#include "tests/emulator/machine.h"

namespace dsv4::emulator {
namespace {

// The 8 bytes of an mbarrier: where it is, so that who writes over it is found.
struct Mbarrier {
  static constexpr uint64_t kMark = 0x2ba1e5;
  uint64_t mark : 23, phase : 1, missing : 20, expected : 20;
};

Mbarrier& mbarrier(void* at) {
  machine().shared("mbarrier", *machine().self().block, shared_address(at), 8, 8);
  auto& state = *static_cast<Mbarrier*>(at);
  if (state.mark != Mbarrier::kMark)
    kernel_error("uses an mbarrier at {} that is not initialised", shared_address(at));
  return state;
}

void arrive(Mbarrier& state) {
  if (--state.missing > 0) return;
  state.phase ^= 1;
  state.missing = state.expected;
  machine().wake(&state);
}

}  // namespace

std::string describe_mbarrier(const void* barrier) {
  const auto& state = *static_cast<const Mbarrier*>(barrier);
  return fmt::format("phase {}, {} arrivals of {} are missing", uint64_t{state.phase},
                     uint64_t{state.missing}, uint64_t{state.expected});
}

void mbarrier_init(void* barrier, uint32_t arrivals) {
  machine().shared("mbarrier.init", *machine().self().block, shared_address(barrier), 8, 8);
  if (arrivals == 0 || arrivals >= 1u << 20)
    kernel_error("initialises an mbarrier for {} arrivals", arrivals);
  *static_cast<Mbarrier*>(barrier) = {Mbarrier::kMark, 0, arrivals, arrivals};
}

void mbarrier_arrive(void* barrier) {
  pause();
  Mbarrier& state = mbarrier(barrier);
  tell(machine().self(), barrier);
  arrive(state);
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
  auto& state = *static_cast<Mbarrier*>(all.in_cluster("arrives", barrier, rank));
  mbarrier(barrier);
  if (state.mark != Mbarrier::kMark)
    kernel_error("arrives at an mbarrier of block {} that is not initialised",
                 all.blocks[rank].index);
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
      {.to = place, .from = valid ? static_cast<const std::byte*>(from) : nullptr, .bytes = bytes});
  all.remember(self);
  all.pause();
}

void perform_copy(Thread& thread, size_t which) {
  auto& copies = thread.copies;
  // An arrival is for the copies before it.
  if (copies[which].arrival != nullptr) {
    for (size_t i = 0; i < which && copies[which].arrival != nullptr; ++i) {
      if (copies[i].arrival == nullptr) which = i;
    }
  }
  const Copy copy = copies[which];
  copies.erase(copies.begin() + static_cast<ptrdiff_t>(which));
  if (copy.arrival != nullptr) {
    Mbarrier& state = mbarrier(copy.arrival);
    tell_of_copies(thread, copy.arrival);
    arrive(state);
    return;
  }
  const auto size = static_cast<size_t>(copy.bytes);
  copy.from == nullptr ? std::memset(copy.to, 0, size) : std::memcpy(copy.to, copy.from, size);
  note_copy(thread, copy.to);
}

void wait_for_copies() {
  Thread& self = machine().self();
  while (!self.copies.empty()) perform_copy(self, 0);
  learn_of_copies(self);
  pause();
}

}  // namespace dsv4::emulator
