#include <cmath>

#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/ops/xattn/attention/block_sparse_attention.h"

namespace dsv4 {
namespace {

constexpr int64_t kHeads = 32, kKvHeads = 8, kWidth = 128, kBlock = 128;

// One causal prompt of n tokens, Llama-3's heads. Every visible block is listed with probability
// `density`, block 0 and the diagonal always.
struct AttentionCase {
  bench::Tensor cu, q, k, v, counts, indices, out;
  BlockSparseAttentionArgs args;

  AttentionCase(int64_t n, double density)
      : cu(DType::kI32, {2}),
        q(DType::kBF16, {n, kHeads, kWidth}),
        k(DType::kBF16, {n, kKvHeads, kWidth}),
        v(DType::kBF16, {n, kKvHeads, kWidth}),
        counts(DType::kI32, {1, kHeads, ceil_div(n, kBlock)}),
        indices(DType::kI32, {1, kHeads, ceil_div(n, kBlock), ceil_div(n, kBlock)}),
        out(DType::kBF16, {n, kHeads, kWidth}) {
    for (const bench::Tensor* tensor : {&q, &k, &v}) bench::fill(*tensor);
    cu.as<int>()[0] = 0;
    cu.as<int>()[1] = static_cast<int>(n);
    Rng rng(1);
    const int64_t blocks = ceil_div(n, kBlock);
    for (int64_t row = 0; row < kHeads * blocks; ++row) {
      int& count = counts.as<int>()[row];
      for (int64_t j = 0; j <= row % blocks; ++j) {
        if (j != 0 && j != row % blocks && rng.uniform() >= density) continue;
        indices.as<int>()[row * blocks + count++] = static_cast<int>(j);
      }
    }
    args = {.batch = {.cu_q = cu, .cu_kv = cu},
            .q = q,
            .k = k,
            .v = v,
            .lists = {.counts = counts, .indices = indices},
            .scale = 1.f / std::sqrt(static_cast<float>(kWidth)),
            .out = out};
  }
};

const bool kRegistered = [] {
  for (const int64_t n : {2048, 32768, 131072}) {
    if (n > 2048 && !bench::full_size()) continue;
    // The portable implementations take seconds at 32K.
    const Arch least = n > 2048 ? Arch::kSm90 : Arch::kCpu;
    for (const double density : {0.1, 0.5, 1.0}) {
      bench::register_impls(
          fmt::format("block_sparse_attention/{}/{}", n, density), block_sparse_attention,
          [=] { return std::make_shared<AttentionCase>(n, density); }, least);
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
