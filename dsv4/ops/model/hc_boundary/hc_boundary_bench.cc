// hc_boundary/TOKENSx4x4096 of V4-Flash: between attention and the experts. Successive calls read
// different fn, as successive layers do.

#include "dsv4/ops/model/hc_boundary/hc_boundary.h"

#include <vector>

#include "bench/op_bench.h"
#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

constexpr int64_t kStreams = 4, kMixes = 24, kWidth = 4096;
constexpr size_t kLayers = 64;  // fn of 1.5 MB each: larger than a cache

struct Case {
  std::vector<bench::Tensor> fn;
  bench::Tensor base, scale, norm, y, y_post, y_comb, streams, x, post, comb;
  HcBoundaryArgs args;
  size_t layer = 0;

  explicit Case(int64_t t)
      : base(DType::kF32, {kMixes}),
        scale(DType::kF32, {3}),
        norm(DType::kBF16, {kWidth}),
        y(DType::kBF16, {t, kWidth}),
        y_post(DType::kF32, {t, kStreams}),
        y_comb(DType::kF32, {t, kStreams, kStreams}),
        streams(DType::kBF16, {t, kStreams, kWidth}),
        x(DType::kBF16, {t, kWidth}),
        post(DType::kF32, {t, kStreams}),
        comb(DType::kF32, {t, kStreams, kStreams}) {
    for (size_t i = 0; i < kLayers; ++i) {
      fn.emplace_back(DType::kF32, std::initializer_list<int64_t>{kMixes, kStreams * kWidth});
      bench::fill(fn.back(), 0.01f);
    }
    for (const bench::Tensor* tensor : {&base, &scale, &norm}) bench::fill(*tensor);
    // Repeated calls on the same streams must not diverge.
    for (const bench::Tensor* tensor : {&y, &y_post, &y_comb, &streams})
      bench::fill(*tensor, 0.25f);
    args = {.y = y,
            .y_post = y_post,
            .y_comb = y_comb,
            .hc = {.fn = fn[0], .base = base, .scale = scale},
            .norm = norm,
            .streams = streams,
            .x = x,
            .post = post,
            .comb = comb};
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
