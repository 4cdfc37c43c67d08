// Kernels for bf16 and f16 of one width of keys and one of values.
// Instances: 64, 64 | 128, 128 | 192, 128 | 256, 256

#include "dsv4/ops/xattn/attention/sm90/launch.cuh"

namespace dsv4::block_sparse_attention_kernel::sm90 {

template void run_heads<DSV4_INSTANCE>(Device&, const BlockSparseAttentionArgs&);

}  // namespace dsv4::block_sparse_attention_kernel::sm90
