// Programmatic dependent launch (sm_90): a kernel that was launched with LaunchShape::pdl starts
// while the previous kernel of the stream still runs. Nothing happens on older devices.
//
// Every thread of such a kernel waits before it ends, so when a kernel has waited, all kernels
// before it are complete, not only the previous one.

#pragma once

namespace dsv4::ptx {

// Waits until the previous kernel has completed and its writes are visible;
// passes at once in a kernel launched without pdl. Before it, read or write
// nothing that another kernel writes or reads.
__device__ inline void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// When all CTAs have executed this (or exited), the next kernel may start where there is room, if
// it was launched with pdl.
__device__ inline void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// The first statement of a kernel that has nothing to do before the wait.
__device__ inline void pdl_start() {
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
}

}  // namespace dsv4::ptx
