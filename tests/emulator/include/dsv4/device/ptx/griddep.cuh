// dsv4/device/ptx/griddep.cuh on the emulator.

#pragma once

namespace dsv4::ptx {

// Kernels run one after another here.
inline void griddepcontrol_wait() {
}
inline void griddepcontrol_launch_dependents() {
}

}  // namespace dsv4::ptx
