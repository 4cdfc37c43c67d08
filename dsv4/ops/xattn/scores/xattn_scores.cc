#include "dsv4/ops/xattn/scores/xattn_scores.h"

#include <algorithm>

#include "dsv4/base/error.h"

namespace dsv4::xattn_scores_kernel {

// Hopper: wgmma, TMA, clusters.
DSV4_IMPL(XattnScoresArgs, sm90)
// Portable: any width, S from 4 on, f32 arithmetic.
DSV4_IMPL(XattnScoresArgs, cuda)
// Any shape, f32 inside.
DSV4_IMPL(XattnScoresArgs, cpu)

constexpr Impl<XattnScoresArgs> kXattnScores[] = {
#if DSV4_CUDA
    {"sm90", Arch::kSm90, true, sm90::reject, sm90::run},
    {"cuda", Arch::kCuda, true, cuda::reject, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<XattnScoresArgs>, cpu::run},
};

}  // namespace dsv4::xattn_scores_kernel

namespace dsv4 {
namespace {

void check(const XattnScoresArgs& args) {
  Dim b1("b+1"), t_q("t_q"), h("h_q"), d("d"), t_kv("t_kv"), h_kv("h_kv");
  Dim page_size("page_size"), pages("pages"), n("n"), q_blocks("q_blocks"), k_blocks("k_blocks");
  expect("cu_q", args.batch.cu_q, {DType::kI32}, {b1});
  expect("cu_kv", args.batch.cu_kv, {DType::kI32}, {b1});
  DSV4_CHECK(*b1 >= 1, "cu_q: want one more element than sequences, got none");
  const int64_t b = args.batch.size();
  expect("q", args.q, {DType::kF32, DType::kBF16, DType::kF16}, {t_q, h, d});
  if (args.page_table.empty()) {
    expect("k", args.k, {args.q.dtype}, {t_kv, h_kv, d});
  } else {
    expect("page_table", args.page_table, {DType::kI32}, {b, n});
    expect("k", args.k, {args.q.dtype}, {pages, page_size, h_kv, d});
  }
  DSV4_CHECK(*h_kv >= 1 && *h % *h_kv == 0, "{} query heads do not share {} key heads evenly", *h,
             *h_kv);
  DSV4_CHECK(args.block == 64 || args.block == 128, "block={}, not 64 or 128", args.block);
  DSV4_CHECK(is_pow2(args.stride) && args.stride <= args.block,
             "stride={}, not a power of two up to block={}", args.stride, args.block);
  DSV4_CHECK(args.scale > 0, "scale={}", args.scale);
  expect("sums", args.sums, {DType::kF32}, {b, h, q_blocks, k_blocks});
  DSV4_CHECK(args.sums.is_contiguous(), "sums {} must be contiguous", to_string(args.sums));
}

// Counts sequences of equal length: their lengths may be on a device.
Cost cost(const XattnScoresArgs& args) {
  const double b = static_cast<double>(std::max<int64_t>(args.batch.size(), 1));
  const bool paged = !args.page_table.empty();
  const double all_keys =
      static_cast<double>(paged ? args.k.dim(0) * args.k.dim(1) : args.k.dim(0));
  const double queries = static_cast<double>(args.q.dim(0)) / b, keys = all_keys / b;
  const double pairs =
      queries * keys - (args.batch.causal ? 0.5 * queries * std::max(queries - 1, 0.0) : 0.0);
  return {.bytes = static_cast<double>(args.q.bytes() + args.k.bytes() + args.sums.bytes()),
          .flops = 2.0 * b * pairs / static_cast<double>(args.stride) *
                   static_cast<double>(args.q.dim(1) * args.q.dim(2))};
}

}  // namespace

constinit const Op<XattnScoresArgs> xattn_scores{"xattn_scores", xattn_scores_kernel::kXattnScores,
                                                 check, cost};

}  // namespace dsv4
