// The group quantizers of formats/quant_group.h and the Hadamard transform over rows of f32,
// through Highway. The bits are those of the scalar definitions on every instruction set, NaN
// included.

#pragma once

#include <cstdint>

namespace dsv4::cpu {

// Q8 over groups of `group`; the last one may be short.
// x: [k]   codes: [k] e4m3   scales: [ceil(k / group)] UE8M0
void quantize_q8_row(const float* x, int64_t k, int64_t group, uint8_t* codes, uint8_t* scales);

// Q4 over groups of `group`, even; k is a multiple of 2.
// x: [k]   pairs: [k / 2], low nibble first   scales: [ceil(k / group)] UE8M0
void quantize_q4_row(const float* x, int64_t k, int64_t group, uint8_t* pairs, uint8_t* scales);

// S8 and S4: quantized and decoded again, code * scale in f32. `out` may be x.
// x, out: [k]
void fake_q8_row(const float* x, int64_t k, int64_t group, float* out);
void fake_q4_row(const float* x, int64_t k, int64_t group, float* out);

// x <- n^-1/2 * x H_n in place, H_n[i][j] = (-1)^popcount(i & j), n a power of two. Butterflies at
// distance 1, 2, 4, .., then one product with fl32(n^-1/2): the same bits on every instruction set.
void hadamard_row(float* x, int64_t n);

}  // namespace dsv4::cpu
