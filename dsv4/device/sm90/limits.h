// Limits of a CTA on Hopper, and constants that its kernels share.

#pragma once

namespace dsv4::sm90 {

inline constexpr int kMaxSmem = 227 << 10;  // bytes of shared memory of a CTA
inline constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

}  // namespace dsv4::sm90
