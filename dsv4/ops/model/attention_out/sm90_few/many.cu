// The products of a prompt whose bits must not depend on the batch, by gemm/sm90/large_m. o is in
// f16 for some of its tokens at a time: all of o would be hundreds of megabytes.

#include <algorithm>

#include "dsv4/ops/gemm/sm90/large_m.h"
#include "dsv4/ops/model/attention_out/sm90_few/launch.cuh"

namespace dsv4::attention_out_kernel::sm90_few {

constexpr int64_t kStoredTokens = 1024;  // 64 MB of V4-Flash

bool takes_many(const Context& context, int64_t tokens) {
  return gemm::large_m::takes(context, tokens, gemm::large_m::kFewTokens);
}

void run_many(const Context& context, const AttentionOutArgs& args, const U& u) {
  Device& device = *context.device;
  const int64_t t = args.o.dim(0);
  for (int64_t first = 0; first < t; first += kStoredTokens) {
    const int64_t last = std::min(t, first + kStoredTokens);
    const Scratch::Scope scope(device.workspace());
    AttentionOutArgs some = args;
    some.o = args.o.slice(0, first, last);
    const gemm::StoredF16 o = store_o(device, some);
    gemm::large_m::run_q8(context, product_of_wo_a(some, o.activations()),
                          u.codes.slice(0, first, last), u.scales.slice(0, first, last));
  }
  gemm::large_m::run(context, product_of_wo_b(args, u));
}

}  // namespace dsv4::attention_out_kernel::sm90_few
