// The activation quantizers of docs/spec/dsv4.md 0.4 for one group of values: Q8 (e4m3 codes) and
// Q4 (e2m1 codes), each with one UE8M0 scale per group. S8/S4 are Q8/Q4 followed by decode.
//
//   Q8: a = max(max|x|, 1e-4);      s = pow2ceil(a * fp32(1/448));
//       code = e4m3(clamp(x/s, -448, 448))
//   Q4: a = max(max|x|, 6*2^-126);  s = pow2ceil(a * fp32(1/6));
//       code = e2m1(clamp(x/s, -6, 6))
//
// For finite x the scale bytes stay within 105..247 (Q8) and 1..253 (Q4), so 1/s is a normal float.
// NaN does not affect the scale. Values above 3.5 * 2^126 may round to 2^128, which decodes to
// infinity.

#pragma once

#include <cstdint>

#include "dsv4/formats/e2m1.h"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/ue8m0.h"

namespace dsv4 {

DSV4_HD constexpr float absmax(const float* x, int n) {
  float a = 0.f;
  for (int i = 0; i < n; ++i) {
    const float v = x[i] < 0 ? -x[i] : x[i];
    if (v > a) a = v;
  }
  return a;
}

DSV4_HD constexpr uint8_t q8_scale(float amax) {
  return pow2ceil_ue8m0((amax < 1e-4f ? 1e-4f : amax) * (1.f / 448.f));
}
DSV4_HD constexpr uint8_t q4_scale(float amax) {
  constexpr float kFloor = 6.f * 0x1p-126f;
  return pow2ceil_ue8m0((amax < kFloor ? kFloor : amax) * (1.f / 6.f));
}

// 1/s of a UE8M0 scale. Dividing by a power of two is exact, so x * inverse equals x / s.
DSV4_HD constexpr float inverse_scale(uint8_t scale) {
  return ue8m0_to_f32(static_cast<uint8_t>(254 - scale));
}

// The encoders saturate, which is the clamp of the formula.
DSV4_HD constexpr uint8_t quantize_group_q8(const float* x, int n, uint8_t* codes) {
  const uint8_t scale = q8_scale(absmax(x, n));
  const float inverse = inverse_scale(scale);
  for (int i = 0; i < n; ++i) codes[i] = f32_to_e4m3(x[i] * inverse);
  return scale;
}

// `pairs` gets n/2 bytes, low nibble first; n is even.
DSV4_HD constexpr uint8_t quantize_q4(const float* x, int n, uint8_t* pairs) {
  const uint8_t scale = q4_scale(absmax(x, n));
  const float inverse = inverse_scale(scale);
  for (int i = 0; i < n; i += 2) {
    pairs[i / 2] = e2m1_pair(f32_to_e2m1(x[i] * inverse), f32_to_e2m1(x[i + 1] * inverse));
  }
  return scale;
}

}  // namespace dsv4
