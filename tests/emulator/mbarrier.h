// The state of an emulated mbarrier, for the operations that arrive or count bytes later.

#pragma once

#include "tests/emulator/machine.h"

namespace dsv4::emulator {

// The 8 bytes of the mbarrier itself, so that a write over it is detected.
struct Mbarrier {
  static constexpr uint64_t kMark = 0x2ba;
  uint64_t mark : 10, phase : 1, missing : 14, expected : 14;
  int64_t bytes : 25;  // expected and not complete; negative while copies are ahead of expect

  void count(int64_t more);
};

Mbarrier& mbarrier(const Place& place);
Place mbarrier_place(const void* barrier);  // of the running thread's CTA
void arrive(const Place& place);
void end_phase_if_done(const Place& place);

}  // namespace dsv4::emulator
