#include "dsv4/ops/xattn/attention/block_sparse_attention.h"

#include <algorithm>

#include "dsv4/base/error.h"

namespace dsv4::block_sparse_attention_kernel {

// Hopper: wgmma and TMA.
DSV4_IMPL(BlockSparseAttentionArgs, sm90)
// Portable: any shape up to 256 columns, f32 arithmetic.
DSV4_IMPL(BlockSparseAttentionArgs, cuda)
// Any shape, f32 inside.
DSV4_IMPL(BlockSparseAttentionArgs, cpu)

constexpr Impl<BlockSparseAttentionArgs> kBlockSparseAttention[] = {
#if DSV4_CUDA
    {"sm90", Arch::kSm90, true, sm90::reject, sm90::run},
    {"cuda", Arch::kCuda, true, cuda::reject, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<BlockSparseAttentionArgs>, cpu::run},
};

}  // namespace dsv4::block_sparse_attention_kernel

namespace dsv4 {
namespace {

// [t_kv, h_kv, d], or pages of it.
void check_kv(const char* name, const ConstTensorView& kv, const ConstTensorView& q, bool paged,
              std::initializer_list<DimArg> rows, std::initializer_list<DimArg> pages) {
  expect(name, kv, {q.dtype}, paged ? pages : rows);
}

void check(const BlockSparseAttentionArgs& args) {
  Dim b1("b+1"), t_q("t_q"), h("h_q"), d("d"), d_v("d_v"), t_kv("t_kv"), h_kv("h_kv");
  Dim page_size("page_size"), pages("pages"), n("n"), q_blocks("q_blocks"), k_blocks("k_blocks");
  expect("cu_q", args.batch.cu_q, {DType::kI32}, {b1});
  expect("cu_kv", args.batch.cu_kv, {DType::kI32}, {b1});
  DSV4_CHECK(*b1 >= 1, "cu_q: want one more element than sequences, got none");
  const int64_t b = args.batch.size();
  expect("q", args.q, {DType::kF32, DType::kBF16, DType::kF16}, {t_q, h, d});
  const bool paged = !args.page_table.empty();
  if (paged) expect("page_table", args.page_table, {DType::kI32}, {b, n});
  check_kv("k", args.k, args.q, paged, {t_kv, h_kv, d}, {pages, page_size, h_kv, d});
  check_kv("v", args.v, args.q, paged, {t_kv, h_kv, d_v}, {pages, page_size, h_kv, d_v});
  DSV4_CHECK(*h_kv >= 1 && *h % *h_kv == 0, "{} query heads do not share {} key heads evenly", *h,
             *h_kv);
  DSV4_CHECK(args.block == 64 || args.block == 128, "block={}, not 64 or 128", args.block);
  DSV4_CHECK(args.scale > 0, "scale={}", args.scale);
  if (!args.lists.empty()) {
    expect("counts", args.lists.counts, {DType::kI32}, {b, h, q_blocks});
    expect("indices", args.lists.indices, {DType::kI32}, {b, h, q_blocks, k_blocks});
    DSV4_CHECK(args.lists.counts.is_contiguous() && args.lists.indices.is_contiguous(),
               "counts {} and indices {} must be contiguous", to_string(args.lists.counts),
               to_string(args.lists.indices));
  }
  expect("out", args.out, {args.q.dtype}, {t_q, h, d_v});
  if (!args.lse.empty()) expect("lse", args.lse, {DType::kF32}, {h, t_q});
}

// Pairs of a query and a key that one head attends to, if the sequences have equal lengths: their
// lengths may be on a device.
double dense_pairs(const BlockSparseAttentionArgs& args) {
  const double b = static_cast<double>(std::max<int64_t>(args.batch.size(), 1));
  const bool paged = !args.page_table.empty();
  const double all_keys =
      static_cast<double>(paged ? args.k.dim(0) * args.k.dim(1) : args.k.dim(0));
  const double queries = static_cast<double>(args.q.dim(0)) / b, keys = all_keys / b;
  const double hidden = args.batch.causal ? 0.5 * queries * std::max(queries - 1, 0.0) : 0.0;
  return b * (queries * keys - hidden);
}

// Pairs of all heads in the listed blocks. A list of a causal batch ends in the block of its
// queries, half of which is visible.
double listed_pairs(const BlockSparseAttentionArgs& args) {
  const ConstTensorView& counts = args.lists.counts;
  double blocks = 0;
  for (int64_t row = 0; row < counts.numel(); ++row) {
    const int count = counts.as<int32_t>()[row];
    blocks += count - (args.batch.causal && count > 0 ? 0.5 : 0.0);
  }
  return blocks * static_cast<double>(args.block * args.block);
}

// Reads the lists: benchmarks keep them where the host reads them.
Cost cost(const BlockSparseAttentionArgs& args) {
  const double pairs = args.lists.empty() ? dense_pairs(args) * static_cast<double>(args.q.dim(1))
                                          : listed_pairs(args);
  const double columns = static_cast<double>(args.q.dim(2) + args.v.dim(-1));
  return {.bytes = static_cast<double>(args.q.bytes() + args.k.bytes() + args.v.bytes() +
                                       args.out.bytes()),
          .flops = 2.0 * pairs * columns};
}

}  // namespace

constinit const Op<BlockSparseAttentionArgs> block_sparse_attention{
    "block_sparse_attention", block_sparse_attention_kernel::kBlockSparseAttention, check, cost};

}  // namespace dsv4
