#include "dsv4/ops/model/attention_out/attention_out.h"

#include "dsv4/base/error.h"

namespace dsv4::attention_out_kernel {

// 5 to 64 tokens under kOfficial, FP8 weights, on Hopper: two launches of gemm/sm90, with more than
// 8 tokens after one that stores o in f16.
DSV4_IMPL(AttentionOutArgs, sm90_few)
DSV4_IMPL(AttentionOutArgs, parts)

constexpr Impl<AttentionOutArgs> kTable[] = {
#if DSV4_CUDA
    {"sm90_few", Arch::kSm90, true, sm90_few::reject, sm90_few::run},
    {"parts", Arch::kCuda, true, accept_all<AttentionOutArgs>, parts::run},
#endif
    {"parts", Arch::kCpu, true, accept_all<AttentionOutArgs>, parts::run},
};

}  // namespace dsv4::attention_out_kernel

namespace dsv4 {
namespace {

void check(const AttentionOutArgs& args) {
  Dim t("t"), h("h"), d("d");
  expect("o", args.o, {DType::kF32, DType::kBF16}, {t, h, d});
  DSV4_CHECK(args.o.is_contiguous(), "o must be contiguous, got {}", to_string(args.o));
  check("wo_a", args.wo_a);
  check("wo_b", args.wo_b);
  DSV4_CHECK(args.groups >= 1 && args.wo_a.k * args.groups == *h * *d,
             "wo_a: {} groups of {} columns for {} heads of {}", args.groups, args.wo_a.k, *h, *d);
  DSV4_CHECK(args.wo_b.k == args.wo_a.n, "wo_b: {} columns for {} rows of wo_a", args.wo_b.k,
             args.wo_a.n);
  expect("y", args.y, {DType::kF32, DType::kBF16}, {t, args.wo_b.n});
}

Cost cost(const AttentionOutArgs& args) {
  const double weights = static_cast<double>(args.wo_a.bytes() + args.wo_b.bytes());
  return {.bytes = weights + static_cast<double>(args.o.bytes() + args.y.bytes()),
          .flops = 2.0 * static_cast<double>(args.o.dim(0)) *
                   static_cast<double>(args.wo_a.n * args.wo_a.k + args.wo_b.n * args.wo_b.k),
          .weight_bytes = weights};
}

}  // namespace

constinit const Op<AttentionOutArgs> attention_out{"attention_out", attention_out_kernel::kTable,
                                                   check, cost};

}  // namespace dsv4
