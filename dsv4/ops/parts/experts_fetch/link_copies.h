// The copies of experts_fetch/sm90 alone, with any number of CTAs: what measurements of the link
// between host and GPU launch (plan/link_probe.h). CUDA builds.
//
//   bytes of place moves[i].place = those at homes[moves[i].expert],   i = 0 .. count - 1
//
// No state of a layer is read or changed.

#pragma once

#include "dsv4/tensor/tensor.h"

namespace dsv4 {

class Device;

struct LinkCopies {
  ConstTensorView homes;  // [e] I64: addresses in host memory that the device reads
  TensorView memory;      // [m, bytes] U8, bytes a multiple of 16
  ConstTensorView moves;  // [n, 2] I32: expert, place
  ConstTensorView count;  // [1] I32: of the moves
  int ctas = 1;
};

// The CTAs of those copies in experts_fetch, which take an SM each beside kernels that fill theirs.
int fetch_ctas();

// Enqueues one kernel on the device's stream. The device has compute capability 9.0.
void copy_over_link(Device& device, const LinkCopies& copies);

}  // namespace dsv4
