// What tests, emulated tests and the benchmark of hc_boundary.h share, and the tests of blocks that
// take a boundary: the fp64 oracle, the builder of random arguments, and one token of them.

#pragma once

#include <vector>

#include "dsv4/base/bits.h"
#include "dsv4/ops/model/hc_boundary/hc_boundary.h"
#include "dsv4/ops/parts/mhc/mhc_case.h"

namespace dsv4 {

struct HcBoundaryWant {
  std::vector<double> streams, x, post, comb;  // [t, m, d], [t, d], [t, m], [t, m, m]
};

HcBoundaryWant hc_boundary_oracle(const HcBoundaryArgs& args);  // call before the op

namespace test {

struct HcBoundaryShape {
  int64_t t = 0, m = 4, d = 0;
  bool first = false;          // no block before
  bool codes = false;          // Q8 of x
  DType dtype = DType::kBF16;  // of streams and x
  DType y = DType::kBF16, norm = DType::kBF16;
  double mix = 0.5;  // sigma of y_post and y_comb; from 0.5 on, repeated calls may diverge
};

// x, post and comb are outputs, the streams are updated. Memory: test::Arena or bench::Arena.
template <class Memory, class Random>
HcBoundaryArgs random_boundary(Memory& memory, Random& random, const HcBoundaryShape& s) {
  const int64_t mixes = s.m * (2 + s.m);
  const auto normal = [&](DType dtype, std::initializer_list<int64_t> shape, double sigma = 1) {
    return normal_input(memory, random, dtype, shape, sigma);
  };
  const TensorView streams = memory.inout(s.dtype, {s.t, s.m, s.d});
  fill_normal(streams, random, 2.0);
  HcBoundaryArgs args{.hc = {.fn = random_fn(memory, random, mixes, s.m * s.d),
                             .base = normal(DType::kF32, {mixes}),
                             .scale = normal(DType::kF32, {3})},
                      .norm = normal(s.norm, {s.d}),
                      .streams = streams,
                      .x = memory.output(s.dtype, {s.t, s.d}),
                      .post = memory.output(DType::kF32, {s.t, s.m}),
                      .comb = memory.output(DType::kF32, {s.t, s.m, s.m})};
  if (s.codes) {
    args.codes = memory.output(DType::kE4M3, {s.t, s.d});
    args.scales = memory.output(DType::kE8M0, {s.t, ceil_div(s.d, 128)});
  }
  // Weights do not change while the model runs: kernels may read them early.
  for (const ConstTensorView& view : {args.hc.fn, args.hc.base, args.hc.scale, args.norm})
    memory.keep_order({view, const_cast<std::byte*>(view.data)});
  if (s.first) return args;
  args.y = normal(s.y, {s.t, s.d});
  args.y_post = normal(DType::kF32, {s.t, s.m}, s.mix);
  args.y_comb = normal(DType::kF32, {s.t, s.m, s.m}, s.mix);
  return args;
}

inline HcBoundaryArgs one_token(const HcBoundaryArgs& a, int64_t i) {
  HcBoundaryArgs one = a;
  for (ConstTensorView* view : {&one.y, &one.y_post, &one.y_comb})
    if (view->rank > 0) *view = view->slice(0, i, i + 1);
  for (TensorView* view : {&one.streams, &one.x, &one.post, &one.comb, &one.codes, &one.scales})
    if (view->rank > 0) *view = view->slice(0, i, i + 1);
  return one;
}

}  // namespace test
}  // namespace dsv4
