// Products of few tokens as launches, for the implementations `sm90_few` of ops.

#pragma once

#include "dsv4/device/device.h"
#include "dsv4/formats/weight.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4::few_gemm {

// What is multiplied, [t, groups * k].
struct Activations {
  ConstTensorView x;        // bf16, or E4M3 with x_scale
  ConstTensorView x_scale;  // [t, groups * k / 128] E8M0
  bool quantize = false;    // bf16 x is multiplied as Q8 (groups of 128); with FP8 weights
};

struct Product {
  Activations in;
  WeightView weight;  // [groups * n, k]
  TensorView out;     // [t, groups * n] f32|bf16
  int64_t groups = 1;
};

// Returns nullptr, or why the kernel cannot compute it.
const char* reject(const Context& context, const Product& product);
void run(const Context& context, const Product& product);

}  // namespace dsv4::few_gemm
