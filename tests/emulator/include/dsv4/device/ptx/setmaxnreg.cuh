// dsv4/device/ptx/setmaxnreg.cuh on the emulator.

#pragma once

namespace dsv4::ptx {

template <int kRegisters>
void setmaxnreg_inc() {
}
template <int kRegisters>
void setmaxnreg_dec() {
}

}  // namespace dsv4::ptx
