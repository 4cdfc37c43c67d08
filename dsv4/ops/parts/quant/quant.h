// Activation quantizers and the Hadamard transform (docs/spec/dsv4.md 0.4).
//
//   quantize_q8:  x -> e4m3 codes + one UE8M0 scale per group of the last axis
//   fake_quant:   x -> Q8 or Q4, then back to values (S8, S4); in Q8 the last group may be short
//                 4-bit codes have no NaN: S4 of NaN or infinity throws NotFinite on the CPU; on a
//                 device, which cannot throw, the result is then undefined
//   hadamard:     y = n^-1/2 * x H_n, H_n[i][j] = (-1)^popcount(i & j); n a power of two
//
// f32 inside, one rounding at the store.

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct QuantizeQ8Args {
  ConstTensorView x;  // [t, k] f32|bf16
  TensorView codes;   // [t, k] E4M3
  TensorView scales;  // [t, ceil(k / group)] E8M0
  int group = 128;
  Mirrors mirrors{};  // of codes and of scales
};

enum class FakeQuantFormat : uint8_t { kS8, kS4 };

struct FakeQuantArgs {
  ConstTensorView x;  // [t, k] f32|bf16
  TensorView out;     // [t, k] f32|bf16, may be x
  FakeQuantFormat format = FakeQuantFormat::kS8;
  int group = 64;  // kS4: k must be a multiple of it
};

struct HadamardArgs {
  ConstTensorView x;  // [t, n] f32|bf16
  TensorView out;     // [t, n] f32|bf16, may be x
};

extern const Op<QuantizeQ8Args> quantize_q8;

extern const Op<FakeQuantArgs> fake_quant;

extern const Op<HadamardArgs> hadamard;

}  // namespace dsv4
