// Integer helpers that host and device share.

#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define DSV4_HD __host__ __device__
#else
#define DSV4_HD
#endif

namespace dsv4 {

DSV4_HD constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
DSV4_HD constexpr int64_t align_up(int64_t a, int64_t b) {
  return ceil_div(a, b) * b;
}
DSV4_HD constexpr bool is_pow2(int64_t a) {
  return a > 0 && (a & (a - 1)) == 0;
}

}  // namespace dsv4
