// Reductions over a row of logits, through Highway.

#pragma once

#include <cstdint>

namespace dsv4::cpu {

// The largest value; NaN if any value is NaN, -inf if n is 0.
float max_value(const float* x, int64_t n);

// sum_i exp((x_i - shift) * factor) in f64, each term within 2 ulps. For x_i <= shift and factor >=
// 0.
double sum_exp(const float* x, int64_t n, double shift, double factor);

}  // namespace dsv4::cpu
