// Moves registers between warpgroups (sm_90a): all four warps of the warpgroup
// execute it at the start of their role. The sum over the CTA must not exceed
// the allocation at launch, or inc deadlocks.

#pragma once

namespace dsv4::ptx {

// kRegisters per thread, a multiple of 8 from 24 to 256.
template <int kRegisters>
__device__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace dsv4::ptx
