// A random boundary before a block in test memory, and what a block that takes it must do.

#pragma once

#include <cmath>

#include "dsv4/ops/model/hc_boundary/hc_boundary.h"
#include "tests/harness/op_check.h"

namespace dsv4::test {

// A call of 4 streams; x, post and comb are outputs, the streams are updated. first: no block yet.
inline HcBoundaryArgs random_boundary(Arena& arena, Rng& rng, int64_t t, int64_t d, DType dtype,
                                      bool first = false) {
  constexpr int64_t m = 4, mixes = m * (2 + m);
  const auto normal = [&](DType type, std::initializer_list<int64_t> shape, double sigma) {
    const TensorView view = arena.input(type, shape);
    fill_normal(view, rng, sigma);
    return view;
  };
  const TensorView streams = arena.inout(dtype, {t, m, d});
  fill_normal(streams, rng, 2.0);
  HcBoundaryArgs args{
      .hc = {.fn = normal(DType::kF32, {mixes, m * d}, 3 / std::sqrt(static_cast<double>(m * d))),
             .base = normal(DType::kF32, {mixes}, 1),
             .scale = normal(DType::kF32, {3}, 1)},
      .norm = normal(dtype, {d}, 1),
      .streams = streams,
      .x = arena.output(dtype, {t, d}),
      .post = arena.output(DType::kF32, {t, m}),
      .comb = arena.output(DType::kF32, {t, m, m})};
  // Weights do not change while the model runs: kernels may read them early.
  for (const ConstTensorView& view : {args.hc.fn, args.hc.base, args.hc.scale, args.norm})
    arena.keep_order({view, const_cast<std::byte*>(view.data)});
  if (first) return args;
  args.y = normal(dtype, {t, d}, 1);
  args.y_post = normal(DType::kF32, {t, m}, 0.5);
  args.y_comb = normal(DType::kF32, {t, m, m}, 0.5);
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

// Every implementation of a block gives the bits of hc_boundary and then the block, and what
// check_op() wants but for the oracle, whose x may differ by a bf16 step.
template <class Args>
void check_boundary_inside(Table<Args> table, const Context& base, Arena& arena,
                           const OpCase<Args>& test) {
  check_op(table, base, arena, test);
  Scratch host_workspace;
  for (const Impl<Args>& impl : table) {
    Context context = base;
    if (impl.arch != Arch::kCpu) context.device = gpu();
    if (context.device == nullptr) context.workspace = &host_workspace;
    if (!reaches(impl.arch, context) || impl.reject(context, test.args) != nullptr) continue;
    SCOPED_TRACE(test.name + " by " + std::string(impl.name));
    const auto written = [&](const auto& call) {
      arena.prepare();
      call();
      if (context.device != nullptr) wait(*context.device);
      return arena.written();
    };
    const auto inside = written([&] { impl.run(context, test.args); });
    const auto before = written([&] {
      hc_boundary(context, test.args.boundary);
      Args block = test.args;
      block.boundary = {};
      impl.run(context, block);
    });
    EXPECT_TRUE(inside == before) << "other bits than hc_boundary and then the block";
  }
}

}  // namespace dsv4::test
