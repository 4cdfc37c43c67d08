// Activations in f16 for FP8 weights that are converted to f16, written to memory once: with more
// than a few tokens it takes longer that every CTA converts its columns of all of them.
//
//   out[t, k]       what ToF16 (convert.cuh) gives, the same bits, in the order in which a product
//                   reads columns: a tensor copy brings it to shared memory as it is
//   scales[t, k / 128]   the power of two of a group of 128 columns
//
// It does not round but what ToF16 rounds, and NaN stay NaN.

#pragma once

#include "dsv4/ops/gemm/sm90/small_m.h"
#include "dsv4/ops/gemm/x/convert.cuh"

namespace dsv4::gemm {

struct StoreF16Params {
  const bf16* x;    // [t, k], contiguous
  f16* out;         // [t, k]
  uint8_t* scales;  // [t, k / 128] E8M0
  int groups;       // t * k / 128
};

inline StoreF16Params make_store_f16_params(const ConstTensorView& x, const StoredF16& to) {
  return {.x = x.as<bf16>(),
          .out = to.values.as<f16>(),
          .scales = to.scales.as<uint8_t>(),
          .groups = static_cast<int>(to.scales.numel())};
}

inline constexpr int kStoreF16Threads = 256, kStoreF16Groups = kStoreF16Threads / kRuns;

// grid: [groups / kStoreF16Groups]. 16 lanes have a group.
__global__ void __launch_bounds__(kStoreF16Threads) store_f16_kernel(const StoreF16Params p) {
  ptx::griddepcontrol_launch_dependents();
  const int run = static_cast<int>(threadIdx.x) % kRuns;
  const int own = static_cast<int>(blockIdx.x * kStoreF16Groups + threadIdx.x / kRuns);
  // All lanes of a warp take part in its shuffles; a group past the end repeats the last.
  const int group = min(own, p.groups - 1);
  ptx::griddepcontrol_wait();
  float v[kRun];
  Run::load(p.x + int64_t{group} * kScaleColumns + run * kRun).widen(v);
  const float largest = largest_of_group(v), inverse = ToF16::inverse(largest);
#pragma unroll
  for (float& value : v) value *= inverse;
  if (own != group) return;
  f16* const to = p.out + int64_t{group} * kScaleColumns + run / 2 * 16 + run % 2 * 4;
#pragma unroll
  for (int chunk = 0; chunk < 2; ++chunk)
    *reinterpret_cast<uint2*>(to + chunk * 8) = ToF16::words(v, chunk);
  if (run == 0) p.scales[group] = ToF16::scale_code(largest);
}

}  // namespace dsv4::gemm
