#include "dsv4/ops/xattn/select/xattn_select.h"

#include "dsv4/base/error.h"

namespace dsv4::xattn_select_kernel {

// Registers only, no sort, no host synchronization.
DSV4_IMPL(XattnSelectArgs, cuda)
DSV4_IMPL(XattnSelectArgs, cpu)

constexpr Impl<XattnSelectArgs> kXattnSelect[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, cuda::reject, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<XattnSelectArgs>, cpu::run},
};

}  // namespace dsv4::xattn_select_kernel

namespace dsv4 {
namespace {

void check(const XattnSelectArgs& args) {
  Dim b1("b+1"), h("h"), q_blocks("q_blocks"), k_blocks("k_blocks");
  expect("cu_q", args.batch.cu_q, {DType::kI32}, {b1});
  expect("cu_kv", args.batch.cu_kv, {DType::kI32}, {b1});
  DSV4_CHECK(*b1 >= 1, "cu_q: want one more element than sequences, got none");
  const int64_t b = args.batch.size();
  expect("sums", args.sums, {DType::kF32}, {b, h, q_blocks, k_blocks});
  expect("counts", args.lists.counts, {DType::kI32}, {b, h, q_blocks});
  expect("indices", args.lists.indices, {DType::kI32}, {b, h, q_blocks, k_blocks});
  DSV4_CHECK(args.sums.is_contiguous() && args.lists.counts.is_contiguous() &&
                 args.lists.indices.is_contiguous(),
             "sums, counts and indices must be contiguous");
  DSV4_CHECK(args.top_k >= 0, "top_k={}", args.top_k);
  DSV4_CHECK(args.top_k > 0 || !args.tau.empty(), "neither tau nor top_k");
  if (!args.tau.empty()) expect("tau", args.tau, {DType::kF32}, {h});
  if (!args.prompt_lengths.empty()) {
    expect("prompt_lengths", args.prompt_lengths, {DType::kI32}, {b});
  }
  DSV4_CHECK(0 <= args.min_blocks && args.min_blocks <= args.max_blocks,
             "min_blocks={} and max_blocks={}", args.min_blocks, args.max_blocks);
  DSV4_CHECK(args.min_length >= 0 && args.dense_tail >= 0, "min_length={}, dense_tail={}",
             args.min_length, args.dense_tail);
  DSV4_CHECK(args.block >= 1, "block={}", args.block);
}

Cost cost(const XattnSelectArgs& args) {
  return {.bytes = static_cast<double>(args.sums.bytes() + args.lists.counts.bytes() +
                                       args.lists.indices.bytes())};
}

}  // namespace

constinit const Op<XattnSelectArgs> xattn_select{"xattn_select", xattn_select_kernel::kXattnSelect,
                                                 check, cost};

}  // namespace dsv4
