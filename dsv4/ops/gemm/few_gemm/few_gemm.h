// The core of products of few tokens on Hopper, which stream a weight once at the speed of memory:
//
//   out[t, n] = sum_k x[t, k] * w[n, k]
//
// This folder is a core room: it has no op table, no oracle and no tests of its own beside those of
// the plan and of the emulator. Ops check the arguments, and the tests of their tables cover it.
//
//   plan.h         how a call is divided into clusters and CTAs; shared memory (host code)
//   config.cuh     tiles, parameters
//   producer.cuh   the thread that copies weights and activations
//   quantize_x.cuh activations that the kernel converts
//   products.cuh   wgmma of one slab
//   kbit.cuh       the same of bit planes; decode_planes.cuh: their codes
//   exchange.cuh   sums over the ranks of a cluster
//   kernel.cuh     the kernel; its head describes the design
//   pair.cuh       several weights of two formats in one launch
//   launch.h       what ops call
//   launch.cuh     parameters of a call

#pragma once

namespace dsv4::few_gemm {

// Weights x activations.
//   kFp8       e4m3 with block scales x e4m3 with a scale per 128 columns
//   kBf16      bf16 x bf16
//   kFp8Bf16   e4m3 with block scales x bf16: both are converted to f16
//   kKbit4, kKbit5          bit planes with e4m3_codebook(K) x e4m3 with a scale per 128 columns
//   kKbit4Bf16, kKbit5Bf16  the same x bf16: both are converted to f16
enum class Format { kFp8, kBf16, kFp8Bf16, kKbit4, kKbit4Bf16, kKbit5, kKbit5Bf16 };

// K of a k-bit format, else 0.
constexpr int bits_of(Format format) {
  if (format == Format::kKbit4 || format == Format::kKbit4Bf16) return 4;
  return format == Format::kKbit5 || format == Format::kKbit5Bf16 ? 5 : 0;
}
constexpr bool converts_to_f16(Format format) {
  return format == Format::kFp8Bf16 || format == Format::kKbit4Bf16 || format == Format::kKbit5Bf16;
}

}  // namespace dsv4::few_gemm
