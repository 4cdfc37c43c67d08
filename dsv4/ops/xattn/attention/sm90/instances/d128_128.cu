#include "dsv4/ops/xattn/attention/sm90/launch.cuh"

namespace dsv4::block_sparse_attention_kernel::sm90 {

void run_128_128(Device& device, const BlockSparseAttentionArgs& args) {
  run_dtypes<128, 128, 128, 2, 2>(device, args);
}

}  // namespace dsv4::block_sparse_attention_kernel::sm90
