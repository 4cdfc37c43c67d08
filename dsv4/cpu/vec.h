// Vector loops that several CPU implementations share, through Highway with run-time dispatch. The
// order of additions depends only on n and the instruction set, never on a caller's batch, so
// results are reproducible.

#pragma once

#include <cstdint>

namespace dsv4::cpu {

float dot(const float* a, const float* b, int64_t n);                             // sum a_i b_i
float sum_squares(const float* a, int64_t n);                                     // sum a_i^2
void axpy(float alpha, const float* x, float* y, int64_t n);                      // y += alpha x
void scale(float alpha, const float* x, float* y, int64_t n);                     // y = alpha x
void multiply(float alpha, const float* x, const float* w, float* y, int64_t n);  // y = w (alpha x)
void widen_bf16(const uint16_t* x, float* y, int64_t n);
void narrow_bf16(const float* x, uint16_t* y, int64_t n);                  // round to nearest even
void narrow_f16(const float* x, uint16_t* y, int64_t n);                   // the same
void decode_e4m3(const uint8_t* codes, float scale, float* y, int64_t n);  // y = scale * code

}  // namespace dsv4::cpu
