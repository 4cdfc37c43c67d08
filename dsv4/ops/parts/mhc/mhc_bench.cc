// Every call reads an fn: successive calls read different ones, as successive layers do.

#include <vector>

#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/parts/mhc/mhc.h"

namespace dsv4 {
namespace {

constexpr int64_t kStreams = 4, kMixes = 24;
constexpr size_t kLayers = 64;  // of 1.5 MB: larger than a cache

// [kLayers] of [rows, columns], and the next one's index.
class Layers {
 public:
  Layers(int64_t rows, int64_t columns) {
    for (size_t i = 0; i < kLayers; ++i) {
      fn_.emplace_back(DType::kF32, std::initializer_list<int64_t>{rows, columns});
      bench::fill(fn_.back(), 0.01f);
    }
  }
  ConstTensorView next() { return fn_[layer_++ % kLayers]; }

 private:
  std::vector<bench::Tensor> fn_;
  size_t layer_ = 0;
};

struct HcPreCase {
  Layers layers;
  bench::Tensor streams, base, scale, out, post, comb;
  HcPreArgs args;

  HcPreCase(int64_t t, int64_t d)
      : layers(kMixes, kStreams * d),
        streams(DType::kBF16, {t, kStreams, d}),
        base(DType::kF32, {kMixes}),
        scale(DType::kF32, {3}),
        out(DType::kBF16, {t, d}),
        post(DType::kF32, {t, kStreams}),
        comb(DType::kF32, {t, kStreams, kStreams}) {
    for (const bench::Tensor* tensor : {&streams, &base, &scale}) bench::fill(*tensor);
    args = {.streams = streams,
            .fn = layers.next(),
            .base = base,
            .scale = scale,
            .out = out,
            .post = post,
            .comb = comb};
  }
  void next() { args.fn = layers.next(); }
};

struct HcPostCase {
  bench::Tensor y, post, comb, streams;
  HcPostArgs args;

  HcPostCase(int64_t t, int64_t d)
      : y(DType::kBF16, {t, d}),
        post(DType::kF32, {t, kStreams}),
        comb(DType::kF32, {t, kStreams, kStreams}),
        streams(DType::kBF16, {t, kStreams, d}) {
    // Repeated calls on the same streams must not diverge.
    for (const bench::Tensor* tensor : {&y, &post, &comb, &streams}) bench::fill(*tensor, 0.25f);
    args = {.y = y, .post = post, .comb = comb, .streams = streams};
  }
};

struct HcHeadCase {
  Layers layers;
  bench::Tensor streams, base, scale, out;
  HcHeadArgs args;

  HcHeadCase(int64_t t, int64_t d)
      : layers(kStreams, kStreams * d),
        streams(DType::kBF16, {t, kStreams, d}),
        base(DType::kF32, {kStreams}),
        scale(DType::kF32, {1}),
        out(DType::kBF16, {t, d}) {
    for (const bench::Tensor* tensor : {&streams, &base, &scale}) bench::fill(*tensor);
    args = {.streams = streams, .fn = layers.next(), .base = base, .scale = scale, .out = out};
  }
  void next() { args.fn = layers.next(); }
};

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    const std::string shape = fmt::format("{}x4x4096", t);
    bench::register_impls<HcPreArgs>("hc_pre/" + shape, hc_pre,
                                     [=] { return std::make_shared<HcPreCase>(t, 4096); });
    bench::register_impls<HcPostArgs>("hc_post/" + shape, hc_post,
                                      [=] { return std::make_shared<HcPostCase>(t, 4096); });
    bench::register_impls<HcHeadArgs>("hc_head/" + shape, hc_head,
                                      [=] { return std::make_shared<HcHeadCase>(t, 4096); });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
