// Clamped SwiGLU of one row, vectorized.
//
//   h[i] = weight * (silu(min(g[i], limit)) * clamp(u[i], -limit, limit))
//   silu(v) = v / (1 + e^-v)

#pragma once

#include <cstdint>

namespace dsv4 {

// Rows are read and written in whole groups of this many floats.
inline constexpr int64_t kSwigluPad = 16;

// limit: infinity for none. h may be g or u.
void swiglu(const float* g, const float* u, float weight, float limit, float* h, int64_t n);

}  // namespace dsv4
