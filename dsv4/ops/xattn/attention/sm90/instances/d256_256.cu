#include "dsv4/ops/xattn/attention/sm90/launch.cuh"

namespace dsv4::block_sparse_attention_kernel::sm90 {

// 128 registers of O leave room for 64 keys.
void run_256_256(Device& device, const BlockSparseAttentionArgs& args) {
  run_dtypes<256, 256, 64, 2, 1>(device, args);
}

}  // namespace dsv4::block_sparse_attention_kernel::sm90
