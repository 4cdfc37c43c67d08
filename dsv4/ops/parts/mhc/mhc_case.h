// fp64 oracles of mhc.h, and random arguments for its tests and benchmarks.

#pragma once

#include <cmath>
#include <initializer_list>
#include <vector>

#include "dsv4/ops/parts/mhc/mhc.h"
#include "tests/harness/fill.h"

namespace dsv4 {

struct HcPreWant {
  std::vector<double> out, post, comb;  // [t, d], [t, m], [t, m, m]
};

HcPreWant hc_pre_oracle(const HcPreArgs& args);
std::vector<double> hc_post_oracle(const HcPostArgs& args);  // [t, m, d]; call before the op
std::vector<double> hc_head_oracle(const HcHeadArgs& args);  // [t, d]
std::vector<double> hc_mean_oracle(const HcMeanArgs& args);  // [t, d]

}  // namespace dsv4

namespace dsv4::test {

template <class Memory, class Random>
TensorView normal_input(Memory& memory, Random& random, DType dtype,
                        std::initializer_list<int64_t> shape, double sigma = 1.0) {
  const TensorView view = memory.input(dtype, shape);
  fill_normal(view, random, sigma);
  return view;
}

// Rows of fn whose products with streams of sigma 3 are mixes of some units.
template <class Memory, class Random>
TensorView random_fn(Memory& memory, Random& random, int64_t rows, int64_t columns) {
  return normal_input(memory, random, DType::kF32, {rows, columns},
                      3 / std::sqrt(static_cast<double>(columns)));
}

template <class Memory, class Random>
HcPreArgs random_hc_pre(Memory& memory, Random& random, int64_t t, int64_t m, int64_t d,
                        DType dtype) {
  const int64_t mixes = m * (2 + m);
  return {.streams = normal_input(memory, random, dtype, {t, m, d}, 3.0),
          .fn = random_fn(memory, random, mixes, m * d),
          .base = normal_input(memory, random, DType::kF32, {mixes}),
          .scale = normal_input(memory, random, DType::kF32, {3}),
          .out = memory.output(dtype, {t, d}),
          .post = memory.output(DType::kF32, {t, m}),
          .comb = memory.output(DType::kF32, {t, m, m})};
}

// sigma: of post and comb. Repeated calls on the same streams diverge where it is large.
template <class Memory, class Random>
HcPostArgs random_hc_post(Memory& memory, Random& random, int64_t t, int64_t m, int64_t d,
                          DType y_dtype, DType dtype, double sigma = 1.0) {
  const TensorView streams = memory.inout(dtype, {t, m, d});
  fill_normal(streams, random, 2.0);
  return {.y = normal_input(memory, random, y_dtype, {t, d}),
          .post = normal_input(memory, random, DType::kF32, {t, m}, sigma),
          .comb = normal_input(memory, random, DType::kF32, {t, m, m}, sigma),
          .streams = streams};
}

template <class Memory, class Random>
HcHeadArgs random_hc_head(Memory& memory, Random& random, int64_t t, int64_t m, int64_t d,
                          DType dtype) {
  return {.streams = normal_input(memory, random, dtype, {t, m, d}, 3.0),
          .fn = random_fn(memory, random, m, m * d),
          .base = normal_input(memory, random, DType::kF32, {m}),
          .scale = normal_input(memory, random, DType::kF32, {1}),
          .out = memory.output(dtype, {t, d})};
}

template <class Memory, class Random>
HcMeanArgs random_hc_mean(Memory& memory, Random& random, int64_t t, int64_t m, int64_t d,
                          DType dtype) {
  return {.streams = normal_input(memory, random, dtype, {t, m, d}, 3.0),
          .out = memory.output(dtype, {t, d})};
}

}  // namespace dsv4::test
