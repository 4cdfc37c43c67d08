#include "bench/op_bench.h"
#include "dsv4/base/rng.h"
#include "dsv4/formats/float16.h"
#include "dsv4/ops/mhc/mhc.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

constexpr int64_t kStreams = 4, kMixes = 24;

void fill_normal(const Buffer& buffer, Rng& rng) {
  for (int64_t i = 0; i < buffer.view().numel(); ++i) {
    const auto value = static_cast<float>(rng.normal());
    if (buffer.view().dtype == DType::kF32) {
      buffer.as<float>()[i] = 0.01f * value;
    } else {
      buffer.as<uint16_t>()[i] = f32_to_bf16(value);
    }
  }
}

struct HcPreCase {
  Buffer streams, fn, base, scale, out, post, comb;
  HcPreArgs args;

  HcPreCase(int64_t t, int64_t d)
      : streams(DType::kBF16, {t, kStreams, d}),
        fn(DType::kF32, {kMixes, kStreams * d}),
        base(DType::kF32, {kMixes}),
        scale(DType::kF32, {3}),
        out(DType::kBF16, {t, d}),
        post(DType::kF32, {t, kStreams}),
        comb(DType::kF32, {t, kStreams, kStreams}) {
    Rng rng(1);
    for (const Buffer* buffer : {&streams, &fn, &base, &scale}) fill_normal(*buffer, rng);
    args = {.streams = streams,
            .fn = fn,
            .base = base,
            .scale = scale,
            .out = out,
            .post = post,
            .comb = comb};
  }
};

struct HcPostCase {
  Buffer y, post, comb, streams;
  HcPostArgs args;

  HcPostCase(int64_t t, int64_t d)
      : y(DType::kBF16, {t, d}),
        post(DType::kF32, {t, kStreams}),
        comb(DType::kF32, {t, kStreams, kStreams}),
        streams(DType::kBF16, {t, kStreams, d}) {
    Rng rng(1);
    for (const Buffer* buffer : {&y, &post, &comb, &streams}) fill_normal(*buffer, rng);
    args = {.y = y, .post = post, .comb = comb, .streams = streams};
  }
};

const bool kRegistered = [] {
  for (const int64_t t : {1, 256}) {
    bench::register_rows<HcPreArgs>(fmt::format("hc_pre/{}x4x4096", t), hc_pre_rows(), hc_pre_cost,
                                    [=] { return std::make_shared<HcPreCase>(t, 4096); });
    bench::register_rows<HcPostArgs>(fmt::format("hc_post/{}x4x4096", t), hc_post_rows(),
                                     hc_post_cost,
                                     [=] { return std::make_shared<HcPostCase>(t, 4096); });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
