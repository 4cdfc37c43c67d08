#include "dsv4/ops/sample/sample.h"

#include <limits>

#include "dsv4/base/error.h"
#include "dsv4/ops/sample/sample_impls.h"

namespace dsv4 {
namespace {

constexpr Impl<SampleArgs> kSample[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<SampleArgs>, sample_cuda},
#endif
    {"cpu", Arch::kCpu, true, accept_all<SampleArgs>, sample_cpu, 0, sample_cpu_bytes},
};

void check(const SampleArgs& args) {
  Dim b("b"), v("v");
  expect("logits", args.logits, {DType::kF32}, {b, v});
  expect("ids", args.ids, {DType::kI32}, {b});
  expect("logprobs", args.logprobs, {DType::kF32}, {b});
  DSV4_CHECK(*v <= std::numeric_limits<int32_t>::max(), "v={}", *v);
  DSV4_CHECK(static_cast<int64_t>(args.params.size()) == *b, "{} params for {} rows",
             args.params.size(), *b);
  DSV4_CHECK(static_cast<int64_t>(args.steps.size()) == *b, "{} steps for {} rows",
             args.steps.size(), *b);
}

Cost cost(const SampleArgs& args) {
  // The logits are read once; an exponential per logit counts as 20 flops.
  return {.bytes = static_cast<double>(args.logits.bytes()),
          .flops = 20.0 * static_cast<double>(args.logits.numel())};
}

}  // namespace

constinit const Op<SampleArgs> sample{"sample", kSample, check, cost};

}  // namespace dsv4
