#include "dsv4/ops/xattn/attention/sm90/launch.cuh"

namespace dsv4::block_sparse_attention_kernel::sm90 {

void run_192_128(Device& device, const BlockSparseAttentionArgs& args) {
  run_dtypes<192, 128, 128, 2, 1>(device, args);
}

}  // namespace dsv4::block_sparse_attention_kernel::sm90
