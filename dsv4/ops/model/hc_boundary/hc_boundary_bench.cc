// hc_boundary/TOKENSx4x4096 of V4-Flash: between attention and the experts. Successive calls read
// different fn, as successive layers do.

#include "dsv4/ops/model/hc_boundary/hc_boundary.h"

#include <vector>

#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/model/hc_boundary/hc_boundary_case.h"

namespace dsv4 {
namespace {

constexpr int64_t kWidth = 4096;
constexpr size_t kLayers = 64;  // fn of 1.5 MB each: larger than a cache

struct Case {
  bench::Arena arena;
  HcBoundaryArgs args;
  std::vector<ConstTensorView> fn;
  size_t layer = 0;

  explicit Case(int64_t t) {
    bench::Random random(1);
    // Repeated calls on the same streams must not diverge.
    args = test::random_boundary(arena, random, {.t = t, .d = kWidth, .mix = 0.25});
    for (size_t i = 0; i < kLayers; ++i)
      fn.push_back(test::random_fn(arena, random, args.hc.fn.dim(0), args.hc.fn.dim(1)));
  }
  void next() { args.hc.fn = fn[layer++ % kLayers]; }
};

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    bench::register_impls<HcBoundaryArgs>(fmt::format("hc_boundary/{}x4x4096", t), hc_boundary,
                                          [=] { return std::make_shared<Case>(t); });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
