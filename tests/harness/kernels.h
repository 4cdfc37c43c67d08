// Kernels of the harness: one that tempts the next kernel to read too early, and those of
// op_check_test.

#pragma once

#include "dsv4/device/device.h"
#include "tests/harness/arena.h"

namespace dsv4::test {

// Enqueues a kernel that lets a kernel with programmatic dependent launch start at once, and writes
// its tensors long after. It waits for `*go` to become nonzero (100 ms at most), then some
// microseconds more in which the next kernel starts, then does writes[0 .. count). All pointers:
// memory that the GPU addresses, until the kernel has finished.
void write_late(Device& device, const Write* writes, int count, const int32_t* go);

struct DoubleTensors {
  const float* x;                // [t, d]
  float* out;                    // [t, d]
  int64_t x_stride, out_stride;  // elements from row to row
  int64_t t, d;
};

struct DoubleLaunch {
  bool pdl;    // with programmatic dependent launch
  bool waits;  // for the kernel before it, as it has to with pdl
};

// out = 2 x, and faults of a caller that only a GPU can have.
void double_rows(Device& device, const DoubleTensors& tensors, const DoubleLaunch& how);
void set_element(Device& device, float* to, float value);
void add_element(Device& device, float* to, const float* value);

}  // namespace dsv4::test
