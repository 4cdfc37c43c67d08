#include "dsv4/ops/model/index_select/index_select.h"

#include "dsv4/base/error.h"

namespace dsv4::index_select_kernel {

// A cluster of CTAs scores and selects the entries of one query: few queries of packed keys.
DSV4_IMPL(IndexSelectArgs, sm90_few)
// Calls index_scores and top_k for a tile of queries at a time.
DSV4_IMPL(IndexSelectArgs, parts)

constexpr Impl<IndexSelectArgs> kIndexSelect[] = {
#if DSV4_CUDA
    {"sm90_few", Arch::kSm90, true, sm90_few::reject, sm90_few::run},
    {"parts", Arch::kCuda, true, accept_all<IndexSelectArgs>, parts::run},
#endif
    {"parts", Arch::kCpu, true, accept_all<IndexSelectArgs>, parts::run},
};

}  // namespace dsv4::index_select_kernel

namespace dsv4 {
namespace {

void check(const IndexSelectArgs& args) {
  Dim t("t"), h("h"), d("d"), b("b"), max_pages("max_pages"), k("k");
  expect("q", args.q, {DType::kF32, DType::kBF16}, {t, h, d});
  expect("weights", args.weights, {DType::kF32, DType::kBF16}, {t, h});
  expect("pages", args.pages, {DType::kI32}, {b, max_pages});
  expect("sequence", args.sequence, {DType::kI32}, {t});
  expect("visible", args.visible, {DType::kI32}, {t});
  if (args.settled.rank != 0) expect("settled", args.settled, {DType::kI32}, {t});
  expect("indices", args.indices, {DType::kI32}, {t, k});
  check("keys", args.keys);
  DSV4_CHECK(args.keys.layout.width == *d, "keys of {} values for queries of {}",
             args.keys.layout.width, *d);
  DSV4_CHECK(args.max_visible >= 0, "max_visible={}", args.max_visible);
}

// Counts every query with max_visible entries, and each key as read once per query.
Cost cost(const IndexSelectArgs& args) {
  const IndexLayoutFp4& layout = args.keys.layout;
  const int64_t key_bytes = args.keys.packed() ? layout.page_bytes(1) : 4 * int64_t{layout.width};
  const auto pairs = static_cast<double>(args.q.dim(0) * args.max_visible);
  const double keys = pairs * static_cast<double>(key_bytes);
  return {.bytes = keys + static_cast<double>(args.q.bytes() + args.weights.bytes() +
                                              args.indices.bytes()),
          .flops = pairs * static_cast<double>(args.q.dim(1)) * (2.0 * layout.width + 3),
          .cache_bytes = keys};
}

}  // namespace

constinit const Op<IndexSelectArgs> index_select{"index_select", index_select_kernel::kIndexSelect,
                                                 check, cost};

}  // namespace dsv4
