#include "dsv4/ops/parts/indexer/indexer.h"

#include "dsv4/base/error.h"

namespace dsv4::indexer_kernel {

// Tensor cores, for packed keys and bf16 queries of 128 values.
DSV4_IMPL(IndexScoresArgs, cuda_mma)
DSV4_IMPL(IndexScoresArgs, cuda)
DSV4_IMPL(IndexScoresArgs, cpu)
DSV4_IMPL(TopKArgs, cuda)
DSV4_IMPL(TopKArgs, cpu)
namespace cpu {
HostBytes host_bytes(const TopKArgs& args);
}

constexpr Impl<IndexScoresArgs> kIndexScores[] = {
#if DSV4_CUDA
    {"cuda_mma", Arch::kCuda, true, cuda_mma::reject, cuda_mma::run},
    {"cuda", Arch::kCuda, true, cuda::reject, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<IndexScoresArgs>, cpu::run},
};

constexpr Impl<TopKArgs> kTopK[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<TopKArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<TopKArgs>, cpu::run, 0, cpu::host_bytes},
};

}  // namespace dsv4::indexer_kernel

namespace dsv4 {
namespace {

void check(const IndexScoresArgs& args) {
  Dim t("t"), h("h"), d("d"), b("b"), max_pages("max_pages"), n("n");
  expect("q", args.q, {DType::kF32, DType::kBF16}, {t, h, d});
  expect("weights", args.weights, {DType::kF32, DType::kBF16}, {t, h});
  expect("pages", args.pages, {DType::kI32}, {b, max_pages});
  expect("sequence", args.sequence, {DType::kI32}, {t});
  expect("visible", args.visible, {DType::kI32}, {t});
  expect("scores", args.scores, {DType::kF32}, {t, n});
  check("keys", args.keys);
  DSV4_CHECK(args.keys.layout.width == *d, "keys of {} values for queries of {}",
             args.keys.layout.width, *d);
}

void check(const TopKArgs& args) {
  Dim t("t"), n("n"), k("k");
  expect("scores", args.scores, {DType::kF32}, {t, n});
  expect("visible", args.visible, {DType::kI32}, {t});
  expect("indices", args.indices, {DType::kI32}, {t, k});
  if (args.pages.empty()) return;
  Dim b("b"), max_pages("max_pages");
  expect("pages", args.pages, {DType::kI32}, {b, max_pages});
  expect("sequence", args.sequence, {DType::kI32}, {t});
  DSV4_CHECK(args.page_entries > 0, "page_entries={}", args.page_entries);
}

// Counts every query with all n entries, and each key as read once.
Cost cost(const IndexScoresArgs& args) {
  const IndexLayoutFp4& layout = args.keys.layout;
  const int64_t key_bytes = args.keys.packed() ? layout.page_bytes(1) : 4 * int64_t{layout.width};
  const auto pairs = static_cast<double>(args.scores.numel());
  const double keys = pairs * static_cast<double>(key_bytes);
  return {.bytes = keys +
                   static_cast<double>(args.q.bytes() + args.weights.bytes() + args.scores.bytes()),
          .flops = pairs * static_cast<double>(args.q.dim(1)) * (2.0 * layout.width + 3),
          .cache_bytes = keys};
}

Cost cost(const TopKArgs& args) {
  return {.bytes = static_cast<double>(args.scores.bytes() + args.indices.bytes()), .flops = 0};
}

}  // namespace

constinit const Op<IndexScoresArgs> index_scores{"index_scores", indexer_kernel::kIndexScores,
                                                 check, cost};

constinit const Op<TopKArgs> top_k{"top_k", indexer_kernel::kTopK, check, cost};

}  // namespace dsv4
