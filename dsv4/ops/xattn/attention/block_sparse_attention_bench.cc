// One causal prompt with the heads of Llama 3. Every visible block is listed with probability
// `density`, block 0 and the diagonal always.

#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/xattn/attention/block_sparse_attention_case.h"

namespace dsv4 {
namespace {

const bool kRegistered = [] {
  for (const int n : {2048, 32768, 131072}) {
    if (n > 2048 && !bench::full_size()) continue;
    // The portable implementations take seconds at 32K.
    const Arch least = n > 2048 ? Arch::kSm90 : Arch::kCpu;
    for (const double density : {0.1, 0.5, 1.0}) {
      const auto build = [=](auto& arena, auto& random) {
        BlockSparseAttentionArgs args = test::random_attention(arena, random,
                                                               {.lengths = {{n, n}},
                                                                .heads = 32,
                                                                .kv_heads = 8,
                                                                .density = density,
                                                                .ends_listed = true});
        args.lse = {};
        return args;
      };
      bench::register_case(fmt::format("block_sparse_attention/{}/{}", n, density),
                           block_sparse_attention, build, least);
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
