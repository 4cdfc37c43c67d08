// Kernels of op_check_test: out = 2 x, and faults of a caller that only a GPU can have.

#pragma once

#include "dsv4/device/device.h"

namespace dsv4::test {

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

void double_rows(Device& device, const DoubleTensors& tensors, const DoubleLaunch& how);
void set_element(Device& device, float* to, float value);
void add_element(Device& device, float* to, const float* value);

}  // namespace dsv4::test
