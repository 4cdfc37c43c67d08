// All of attention_in.h after the products of x in one launch, for few tokens under kOfficial on
// Hopper: the rows of append.h, and the queries
//
//   c       = Q8(rms_norm(latent))
//   q       = rope(head_norm(c wq_b))
//   index_q = S4(hadamard(rope(c wq_b')))

#pragma once

#include "dsv4/ops/model/attention_in/sm90_few/append.h"

namespace dsv4 {

// Null: finish_few() takes these arguments, of which append_rows_reject() takes the rows; else why
// not. Where bits must not depend on the batch, it takes any number of tokens.
const char* finish_few_reject(const Context& context, const AttentionInArgs& args);

// Whether finish_few() takes rows: its tokens fit one launch, and have indexer queries all or none.
// Others are several launches, which give each token the same bits.
bool appends_rows(const AttentionInArgs& args);

// latent: [t, Q] bf16, x wq_a, contiguous and on 16 bytes. Writes q, index_q where it is wanted,
// and the rows, unless they are null.
void finish_few(const Context& context, const AttentionInArgs& args, const ConstTensorView& latent,
                const AppendInputs* rows);

// Queries of many tokens with the bits of finish_few() (query_many.cu): the product of all latents
// by gemm/sm90/large_m, and what follows it in launches of its own (query_finish.cuh).
// takes_many(): whether it takes what finish_few_reject() has taken.
bool takes_many(const Context& context, const AttentionInArgs& args);
void finish_many(const Context& context, const AttentionInArgs& args,
                 const ConstTensorView& latent);

}  // namespace dsv4
