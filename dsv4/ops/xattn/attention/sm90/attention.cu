// Checks of the Hopper implementation and choice of its kernel
// (launch.cuh).

#include "dsv4/ops/xattn/attention/block_sparse_attention.h"

#include "dsv4/device/alignment.h"
#include "dsv4/device/device.h"
#include "dsv4/ops/xattn/attention/sm90/plan.h"

namespace dsv4::block_sparse_attention_kernel::sm90 {
namespace {

using Run = void (*)(Device&, const BlockSparseAttentionArgs&);

Run kernel_for(int64_t d, int64_t d_v) {
  if (d == 64 && d_v == 64) return run_heads<64, 64>;
  if (d == 128 && d_v == 128) return run_heads<128, 128>;
  if (d == 192 && d_v == 128) return run_heads<192, 128>;
  return d == 256 && d_v == 256 ? run_heads<256, 256> : nullptr;
}

// [t, heads, d], or pages of it, with the heads of a token beside each other, at any distance.
bool tokens_outside_heads(const ConstTensorView& x) {
  const size_t rows = x.rank == 4 ? 1 : 0;
  return x.shape[rows] <= 1 || x.stride[rows] >= x.stride[rows + 1] * x.shape[rows + 1];
}

}  // namespace

const char* reject(const Context& context, const BlockSparseAttentionArgs& args) {
  if (context.device->info().major != 9) return "wgmma is Hopper's";
  if (context.numerics != Numerics::kOfficial) return "P is rounded";
  if (args.q.dtype == DType::kF32) return "wants bf16 or f16";
  if (kernel_for(args.q.dim(2), args.v.dim(-1)) == nullptr)
    return "wants d and d_v of 64, 128 or 256, or 192 and 128";
  if (args.block != kBlockSize) return "wants blocks of 128";
  const int64_t page_size = page_size_of(args);
  if (page_size % 8 != 0 ||
      (page_size != 0 && kBlockSize % page_size != 0 && page_size % kBlockSize != 0))
    return "wants pages of 8 to 128 positions that divide a block, or of whole blocks";
  // TMA strides, and the vector stores of the epilogue.
  if (!rows_on(args.q, 16) || !rows_on(args.k, 16) || !rows_on(args.v, 16) ||
      !rows_on(args.out, 16))
    return "q, k, v or out is not on 16 bytes";
  if (!tokens_outside_heads(args.q) || !tokens_outside_heads(args.k) ||
      !tokens_outside_heads(args.v))
    return "wants the heads of a token before the next token";
  if (args.k.numel() == 0) return "no keys";
  if (items_of(args) > INT32_MAX / 2) return "more than 2^30 query blocks";
  return nullptr;
}

void run(const Context& context, const BlockSparseAttentionArgs& args) {
  if (args.q.numel() == 0) return;
  kernel_for(args.q.dim(2), args.v.dim(-1))(*context.device, args);
}

}  // namespace dsv4::block_sparse_attention_kernel::sm90
