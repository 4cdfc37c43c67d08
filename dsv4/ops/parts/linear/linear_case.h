// What tests, emulated tests and benchmarks of linear.h and projection.h share: the fp64 oracles
// and the builder of random arguments.

#pragma once

#include <cmath>
#include <vector>

#include "dsv4/base/bits.h"
#include "dsv4/ops/parts/linear/linear.h"
#include "tests/harness/compare.h"
#include "tests/harness/fill.h"

namespace dsv4 {

std::vector<double> linear_oracle(const LinearArgs& args);  // [t, n]

// max over outputs of sum_k |x[t, k] * w[n, k]|, to which rounding errors of an output are
// relative.
double linear_magnitude(const LinearArgs& args);

// [t, n] x w^T; under official numerics with Q8 activations where the weight format requires them
std::vector<double> projection_oracle(const Context& context, const ConstTensorView& x,
                                      const WeightView& weight);

namespace test {

struct LinearShape {
  int64_t t;
  DType x = DType::kF32, out = DType::kF32;  // x in E4M3: with scales of 2^-3 .. 2^2
  int64_t groups = 1;                        // the weight has n / groups rows of each
  bool quantize_x = false;
  int64_t first = 0;  // columns of x before those of the call
};

// Memory: test::Arena or bench::Arena.
template <class Memory>
LinearArgs random_linear(Memory& memory, Rng& rng, const LinearShape& s, const WeightView& weight) {
  const int64_t columns = s.groups * weight.k;
  const TensorView x = memory.input(s.x, {s.t, s.first + columns});
  fill_normal(x, rng);
  LinearArgs args{.x = x.slice(1, s.first, s.first + columns),
                  .weight = weight,
                  .out = memory.output(s.out, {s.t, weight.n}),
                  .groups = s.groups,
                  .quantize_x = s.quantize_x};
  if (s.x == DType::kE4M3) {
    const TensorView scale = memory.input(DType::kE8M0, {s.t, s.groups * ceil_div(weight.k, 128)});
    for (int64_t i = 0; i < scale.numel(); ++i)
      scale.as<uint8_t>()[i] = static_cast<uint8_t>(124 + rng.below(6));
    args.x_scale = scale;
  }
  return args;
}

// The error of a sum of k products in f32 is a random walk over its k roundings, each at most 2^-24
// of the sum of magnitudes; a single wrong weight causes an error of about 1/k of it, which is far
// larger.
inline Tolerance linear_tolerance(const LinearArgs& args, double magnitude) {
  const double walk = 4 + std::sqrt(static_cast<double>(args.weight.k));
  return {.ulps = args.out.dtype == DType::kF32 ? 2.0 : 0.51, .abs = 0x1p-24 * walk * magnitude};
}

}  // namespace test
}  // namespace dsv4
