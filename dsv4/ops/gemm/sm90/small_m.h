// Products of few tokens as launches, for the implementations `sm90_few` of ops.

#pragma once

#include <span>

#include "dsv4/device/device.h"
#include "dsv4/formats/weight.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4::gemm {

// What is multiplied, [t, groups * k].
struct Activations {
  ConstTensorView x;        // bf16, or E4M3 with x_scale, or f16 with it (x/stored_f16.cuh)
  ConstTensorView x_scale;  // [t, groups * k / 128] E8M0
  bool quantize = false;    // bf16 x is multiplied as Q8 (groups of 128); not with BF16 weights
};

// bf16 x as FP8 weights are multiplied with it, written once for all CTAs of a product: f16 with a
// power of two for each 128 columns, in the order in which the kernel reads columns.
struct StoredF16 {
  TensorView values, scales;  // [t, k] F16, [t, k / 128] E8M0

  Activations activations() const { return {.x = values, .x_scale = scales}; }
};
// x: [t, k] bf16, contiguous, k a multiple of 128.
void store_f16(Device& device, const ConstTensorView& x, const StoredF16& to);

struct Product {
  Activations in;
  WeightView weight;  // [groups * n, k]
  TensorView out;     // [t, groups * n] f32|bf16
  int64_t groups = 1;
};

// Returns nullptr, or why the kernel cannot compute it.
const char* reject(const Context& context, const Product& product);
void run(const Context& context, const Product& product);

// reject() for weights as bit planes, which run() takes, too.
const char* reject_kbit(const Context& context, const Product& product);
inline constexpr int64_t kKbitTokens = 8;  // a CTA has at most 8; more read the weights again

// Several weights times the same activations in one launch: at most kQ8Targets weights that take
// Q8 of x, FP8 or bit planes of one K, and kBf16Targets BF16 weights, which take x.
struct Target {
  WeightView weight;  // [n, k]
  TensorView out;     // [t, n] f32|bf16
};
inline constexpr int kQ8Targets = 2, kBf16Targets = 5;
// Every CTA converts its columns of all tokens. With more tokens than these, Q8 and f16 of x are
// faster in a kernel of their own.
inline constexpr int64_t kQuantizeTokens = 4, kConvertTokens = 8;

const char* reject(const Context& context, const ConstTensorView& x,
                   std::span<const Target> targets);
// reject() for targets as bit planes in place of FP8.
const char* reject_kbit(const Context& context, const ConstTensorView& x,
                        std::span<const Target> targets);
// x: [t, k] bf16. quantized: x as the weights that take Q8 want it, x itself to be quantized by the
// kernel (at most kQuantizeTokens), or its stored codes.
void run(const Context& context, const ConstTensorView& x, const Activations& quantized,
         std::span<const Target> targets);

// run() hands many tokens whose bits must not depend on the batch to this (large_m.h): FP8 and BF16
// targets in two launches. quantized: stored codes.
namespace large_m {
bool takes(const Context& context, const ConstTensorView& x, std::span<const Target> targets);
void run(const Context& context, const ConstTensorView& x, const Activations& quantized,
         std::span<const Target> targets);
}  // namespace large_m

}  // namespace dsv4::gemm
