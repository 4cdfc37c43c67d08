// Programmatic dependent launch (sm_90): a kernel that was launched with LaunchShape::pdl starts
// while the previous kernel of the stream still runs.

#pragma once

namespace dsv4::ptx {

// Waits until the previous kernel has completed and its writes are visible;
// passes at once in a kernel launched without pdl. Before it, read or write
// nothing that another kernel writes or reads.
__device__ inline void griddepcontrol_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
// When all CTAs have executed this (or exited), the next kernel may start where there is room, if
// it was launched with pdl.
__device__ inline void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace dsv4::ptx
