#include "dsv4/ops/model/sample/sample.h"

#include <limits>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"

namespace dsv4::sample_kernel {

// A cluster of 8 CTAs keeps its row in shared memory.
DSV4_IMPL(SampleArgs, sm90_cluster)
// A CTA reads its row from global memory in every pass.
DSV4_IMPL(SampleArgs, cuda)
DSV4_IMPL(SampleArgs, cpu)
namespace cpu {
HostBytes host_bytes(const SampleArgs& args);
}

constexpr Impl<SampleArgs> kSample[] = {
#if DSV4_CUDA
    {"sm90_cluster", Arch::kSm90, true, sm90_cluster::reject, sm90_cluster::run},
    {"cuda", Arch::kCuda, true, accept_all<SampleArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<SampleArgs>, cpu::run, 0, cpu::host_bytes},
};

}  // namespace dsv4::sample_kernel

namespace dsv4 {
namespace {

void check(const SampleArgs& args) {
  Dim b("b"), v("v"), n("n");
  expect("logits", args.logits, {DType::kF32}, {b, v});
  expect("ids", args.ids, {DType::kI32}, {b});
  expect("logprobs", args.logprobs, {DType::kF32}, {b});
  DSV4_CHECK(*v <= std::numeric_limits<int32_t>::max(), "v={}", *v);
  const auto count = [&](const char* what, size_t have, int64_t want) {
    DSV4_CHECK(static_cast<int64_t>(have) == want, "{} {} for {} rows", have, what, *b);
  };
  count("params", args.params.size(), *b);
  count("steps", args.steps.size(), *b);
  if (!args.term_begin.empty()) count("limits of terms", args.term_begin.size(), *b + 1);
  DSV4_CHECK(args.terms.empty() || !args.term_begin.empty(), "{} terms without term_begin",
             args.terms.size());
  if (!args.mask.empty()) expect("mask", args.mask, {DType::kI32}, {b, ceil_div(*v, 32)});
  DSV4_CHECK(args.top_ids.empty() == args.top_logprobs.empty(), "{} without the other",
             args.top_ids.empty() ? "top_logprobs" : "top_ids");
  if (args.top_ids.empty()) return;
  expect("top_ids", args.top_ids, {DType::kI32}, {b, n});
  expect("top_logprobs", args.top_logprobs, {DType::kF32}, {b, n});
  DSV4_CHECK(*n <= kMaxTopLogprobs, "n={} is more than {}", *n, kMaxTopLogprobs);
}

Cost cost(const SampleArgs& args) {
  // The logits are read once; an exponential per logit counts as 20 flops.
  return {.bytes = static_cast<double>(args.logits.bytes()),
          .flops = 20.0 * static_cast<double>(args.logits.numel())};
}

}  // namespace

constinit const Op<SampleArgs> sample{"sample", sample_kernel::kSample, check, cost};

}  // namespace dsv4
