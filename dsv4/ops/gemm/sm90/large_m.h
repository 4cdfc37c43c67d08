// Products of many tokens with the bits that small_m gives a token (small_m.h), for Context::
// need_batch_invariant: decode steps keep their kernels, and prompts take this one, at the rate of
// the tensor cores. FP8 and BF16 weights; activations as they are multiplied: E4M3 codes, bf16 for
// BF16 weights, or f16 for FP8 weights (StoredF16). Any number of tokens. Several weights of one x
// are declared in small_m.h, whose run() hands many tokens to them.

#pragma once

#include <span>

#include "dsv4/ops/gemm/sm90/small_m.h"

namespace dsv4::gemm::large_m {

// Up to so many tokens launches of small_m are predicted to take less time: of one product, and of
// several products of one x.
inline constexpr int64_t kFewTokens = 64, kFewForTargets = 128;

// Whether products of so many tokens are computed here. few: one of the constants above.
inline bool takes(const Context& context, int64_t tokens, int64_t few) {
  return context.need_batch_invariant && tokens > few;
}

// Returns nullptr, or why the kernel cannot compute it.
const char* reject(const Context& context, const Product& product);
void run(const Context& context, const Product& product);

// Sums of whole rows, as if small_m had one rank: the order of attention_in/sm90_few/query.h.
void run_whole_rows(const Context& context, const Product& product);

// Q8 of the product rounded to bf16, in place of product.out. codes: [t, groups * n] E4M3,
// contiguous; scales: [t, groups * n / 128] E8M0. n is a multiple of 128.
void run_q8(const Context& context, const Product& product, const TensorView& codes,
            const TensorView& scales);

}  // namespace dsv4::gemm::large_m
