// Random contents of tensors, and their elements as doubles. Tests and benchmarks share these: the
// builder of an op's random arguments (X_case.h) calls them for a test::Arena and for a
// bench::Arena.

#pragma once

#include <cstdint>

#include "dsv4/base/rng.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4::test {

// Fills with independent draws, rounded to the dtype (F32, BF16, F16).
void fill_normal(const TensorView& view, Rng& rng, double sigma = 1.0, double mean = 0.0);
void fill_uniform(const TensorView& view, Rng& rng, double low, double high);
// I32 or I64 in [low, high).
void fill_ints(const TensorView& view, Rng& rng, int64_t low, int64_t high);

// Element i of a contiguous tensor of any numeric dtype as a double.
double value_at(const ConstTensorView& view, int64_t i);
void set_value(const TensorView& view, int64_t i, double value);  // rounds to the dtype

}  // namespace dsv4::test
