#include "dsv4/ops/parts/mhc/mhc.h"

#include "dsv4/base/error.h"

namespace dsv4::mhc_kernel {

DSV4_IMPL(HcPreArgs, cuda)
DSV4_IMPL(HcPreArgs, cpu)
namespace cpu {
HostBytes host_bytes(const HcPreArgs& args);
}
DSV4_IMPL(HcPostArgs, cuda)
DSV4_IMPL(HcPostArgs, cpu)
DSV4_IMPL(HcHeadArgs, cuda)
DSV4_IMPL(HcHeadArgs, cpu)
namespace cpu {
HostBytes host_bytes(const HcHeadArgs& args);
}
DSV4_IMPL(HcMeanArgs, cuda)
DSV4_IMPL(HcMeanArgs, cpu)
namespace cpu {
HostBytes host_bytes(const HcMeanArgs& args);
}

constexpr Impl<HcPreArgs> kHcPre[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<HcPreArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<HcPreArgs>, cpu::run, 0, cpu::host_bytes},
};

constexpr Impl<HcPostArgs> kHcPost[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<HcPostArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<HcPostArgs>, cpu::run},
};

constexpr Impl<HcHeadArgs> kHcHead[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<HcHeadArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<HcHeadArgs>, cpu::run, 0, cpu::host_bytes},
};

constexpr Impl<HcMeanArgs> kHcMean[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<HcMeanArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<HcMeanArgs>, cpu::run, 0, cpu::host_bytes},
};

}  // namespace dsv4::mhc_kernel

namespace dsv4 {
namespace {

void check_streams(int64_t m) {
  DSV4_CHECK(m >= 1 && m <= kMaxStreams, "{} streams, at most {}", m, kMaxStreams);
}

void check(const HcPreArgs& args) {
  Dim t("t"), m("m"), d("d");
  expect("streams", args.streams, {DType::kF32, DType::kBF16}, {t, m, d});
  check_streams(*m);
  expect("fn", args.fn, {DType::kF32}, {*m * (2 + *m), *m * *d});
  expect("base", args.base, {DType::kF32}, {*m * (2 + *m)});
  expect("scale", args.scale, {DType::kF32}, {3});
  DSV4_CHECK(args.sinkhorn_iters >= 1, "sinkhorn_iters={}", args.sinkhorn_iters);
  expect("out", args.out, {DType::kF32, DType::kBF16}, {t, d});
  expect("post", args.post, {DType::kF32}, {t, m});
  expect("comb", args.comb, {DType::kF32}, {t, m, m});
}

void check(const HcPostArgs& args) {
  Dim t("t"), m("m"), d("d");
  expect("streams", args.streams, {DType::kF32, DType::kBF16}, {t, m, d});
  check_streams(*m);
  expect("y", args.y, {DType::kF32, DType::kBF16}, {t, d});
  expect("post", args.post, {DType::kF32}, {t, m});
  expect("comb", args.comb, {DType::kF32}, {t, m, m});
}

void check(const HcHeadArgs& args) {
  Dim t("t"), m("m"), d("d");
  expect("streams", args.streams, {DType::kF32, DType::kBF16}, {t, m, d});
  check_streams(*m);
  expect("fn", args.fn, {DType::kF32}, {m, *m * *d});
  expect("base", args.base, {DType::kF32}, {m});
  expect("scale", args.scale, {DType::kF32}, {1});
  expect("out", args.out, {DType::kF32, DType::kBF16}, {t, d});
}

void check(const HcMeanArgs& args) {
  Dim t("t"), m("m"), d("d");
  expect("streams", args.streams, {DType::kF32, DType::kBF16}, {t, m, d});
  check_streams(*m);
  expect("out", args.out, {DType::kF32, DType::kBF16}, {t, d});
}

// The dot products with the rows of fn, the sum of squares, and the weighted sum of the streams.
double mix_flops(const ConstTensorView& streams, const ConstTensorView& fn) {
  return static_cast<double>(streams.numel()) * (2.0 * static_cast<double>(fn.dim(0)) + 4.0);
}

Cost cost(const HcPreArgs& args) {
  return {.bytes = static_cast<double>(args.streams.bytes() + args.fn.bytes() + args.out.bytes() +
                                       args.post.bytes() + args.comb.bytes()),
          .flops = mix_flops(args.streams, args.fn),
          .weight_bytes = static_cast<double>(args.fn.bytes())};
}

Cost cost(const HcPostArgs& args) {
  const auto m = static_cast<double>(args.streams.dim(1));
  return {.bytes = static_cast<double>(2 * args.streams.bytes() + args.y.bytes() +
                                       args.post.bytes() + args.comb.bytes()),
          .flops = static_cast<double>(args.streams.numel()) * (2.0 * m + 1.0)};
}

Cost cost(const HcHeadArgs& args) {
  return {.bytes = static_cast<double>(args.streams.bytes() + args.fn.bytes() + args.out.bytes()),
          .flops = mix_flops(args.streams, args.fn),
          .weight_bytes = static_cast<double>(args.fn.bytes())};
}

Cost cost(const HcMeanArgs& args) {
  return {.bytes = static_cast<double>(args.streams.bytes() + args.out.bytes()),
          .flops = static_cast<double>(args.streams.numel())};
}

}  // namespace

constinit const Op<HcPreArgs> hc_pre{"hc_pre", mhc_kernel::kHcPre, check, cost};

constinit const Op<HcPostArgs> hc_post{"hc_post", mhc_kernel::kHcPost, check, cost};

constinit const Op<HcHeadArgs> hc_head{"hc_head", mhc_kernel::kHcHead, check, cost};

constinit const Op<HcMeanArgs> hc_mean{"hc_mean", mhc_kernel::kHcMean, check, cost};

}  // namespace dsv4
