// The gated activation of one row.
//
//   h[i] = weight * (a(min(g[i], limit)) * clamp(u[i], -limit, limit))
//
// swiglu() has a = silu and is vectorized; gated() takes the activation and computes the other two
// in double precision, one element at a time.

#pragma once

#include <cstdint>

#include "dsv4/ops/parts/experts/experts.h"

namespace dsv4 {

// Rows are read and written in whole groups of this many floats.
inline constexpr int64_t kSwigluPad = 16;

// limit: infinity for none. h may be g or u.
void swiglu(const float* g, const float* u, float weight, float limit, float* h, int64_t n);
void gated(GateActivation activation, const float* g, const float* u, float weight, float limit,
           float* h, int64_t n);

}  // namespace dsv4
