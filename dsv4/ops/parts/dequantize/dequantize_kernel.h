// The SIMD kernels under dequantize_cpu.cc: runs of 4-bit pairs and of bit planes to f32.

#pragma once

#include <cstdint>

namespace dsv4::dequantize_kernel {

enum class PairScale : uint8_t { kE8M0, kE4M3 };

// out[i] = e2m1(code i) * scales[i / group] * scale2
// pairs: [n / 2], low nibble first; scales: [n / group]; group: a multiple of 16; n of group
void decode_pairs(const uint8_t* pairs, PairScale format, const uint8_t* scales, int64_t group,
                  int64_t n, float scale2, float* out);

// out[i] = codebook[code i] * e4m4(scales[i / 32]) * scale2
// planes: [n / 32, bits]; codebook: [2^bits]; n: a multiple of 32
void decode_planes(const uint32_t* planes, int bits, const float* codebook, const uint8_t* scales,
                   int64_t n, float scale2, float* out);

}  // namespace dsv4::dequantize_kernel
