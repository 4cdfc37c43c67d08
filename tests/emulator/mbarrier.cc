// mbarriers: arrivals and transaction bytes.

#include "tests/emulator/mbarrier.h"

#include "tests/emulator/instructions.h"

namespace dsv4::emulator {

void Mbarrier::count(int64_t more) {
  constexpr int64_t kMost = (1 << 20) - 1;  // PTX ISA, mbarrier, tx-count
  const int64_t now = bytes + more;
  if (now > kMost || now < -kMost) kernel_error("an mbarrier counts {} bytes", now);
  bytes = now;
}

Mbarrier& mbarrier(const Place& place) {
  auto& state = *reinterpret_cast<Mbarrier*>(
      machine().shared("mbarrier", *place.cta, place.address, sizeof(Mbarrier), 8));
  if (state.mark != Mbarrier::kMark) kernel_error("uses an mbarrier that is not initialized");
  return state;
}
Place mbarrier_place(const void* barrier) {
  const Place place = machine().place_of("mbarrier", barrier);
  mbarrier(place);
  return place;
}

void end_phase_if_done(const Place& place) {
  Mbarrier& state = mbarrier(place);
  if (state.missing > 0 || state.bytes != 0) return;
  state.phase ^= 1;
  state.missing = state.expected;
  machine().wake(place.cta, place.address);
}

void arrive(const Place& place) {
  Mbarrier& state = mbarrier(place);
  if (state.missing == 0) kernel_error("arrives once more than an mbarrier expects");
  --state.missing;
  end_phase_if_done(place);
}

std::string describe_mbarrier(const Place& place) {
  const auto& state = *reinterpret_cast<const Mbarrier*>(machine().at(place));
  return fmt::format("phase {}, {} arrivals of {} and {} bytes are missing", uint64_t{state.phase},
                     uint64_t{state.missing}, uint64_t{state.expected}, int64_t{state.bytes});
}

void mbarrier_init(void* barrier, uint32_t arrivals) {
  const Instruction instruction;
  const Place place = machine().place_of("mbarrier.init", barrier);
  std::byte* at = machine().shared("mbarrier.init", *place.cta, place.address, 8, 8);
  if (arrivals == 0 || arrivals >= 1u << 14)
    kernel_error("initializes an mbarrier for {} arrivals", arrivals);
  *reinterpret_cast<Mbarrier*>(at) = {Mbarrier::kMark, 0, arrivals, arrivals, 0};
}

void mbarrier_arrive(void* barrier) {
  const Instruction instruction;
  machine().pause();
  const Place place = mbarrier_place(barrier);
  release(instruction.thread, place.address);
  arrive(place);
}

void mbarrier_expect(void* barrier, uint32_t bytes) {
  const Instruction instruction;
  machine().pause();
  mbarrier(mbarrier_place(barrier)).count(bytes);
}

void mbarrier_arrive_after_copies(void* barrier) {
  const Instruction instruction;
  Thread& self = instruction.thread;
  self.copies.push_back({.kind = Copy::kArrival, .mbarrier = mbarrier_place(barrier)});
  machine().remember(self);
  machine().pause();
}

void mbarrier_arrive_at(void* barrier, uint32_t rank) {
  const Instruction instruction;
  machine().pause();
  const Place mine = mbarrier_place(barrier);
  const Place there = machine().in_cluster("arrives", mine, rank);
  // Writes are noted for the CTA of the writer only.
  if (mine == there) release(instruction.thread, there.address);
  arrive(there);
}

// If two phases end before the thread looks, it does not see the first: as on the device.
void mbarrier_wait(void* barrier, uint32_t parity) {
  const Instruction instruction;
  machine().pause();
  const Place place = mbarrier_place(barrier);
  while (mbarrier(place).phase == (parity & 1))
    machine().wait(
        {.kind = Wait::kMbarrier, .where = place.cta, .address = place.address, .parity = parity});
  acquire(instruction.thread, place.address);
}

}  // namespace dsv4::emulator
