// dsv4/device/ptx/griddep.cuh on the emulator.

#pragma once

#include "tests/emulator/instructions.h"

namespace dsv4::ptx {

inline void griddepcontrol_wait() {
  emulator::wait_for_prerequisites();
}
inline void griddepcontrol_launch_dependents() {
  emulator::launch_dependents();
}
inline void pdl_start() {
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
}

}  // namespace dsv4::ptx
