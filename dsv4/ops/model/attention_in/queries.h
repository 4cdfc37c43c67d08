// The queries of attention_in.h from their latent, by the ops that they are made of, and their last
// two steps in one launch: rope(head_norm(q)) of ops/parts/norm/norm.h and ops/parts/rope/rope.h
// under kOfficial, for heads of 512 values of which 64 rotate.

#pragma once

#include "dsv4/ops/model/attention_in/attention_in.h"

namespace dsv4 {

// latent: [t, Q], x wq_a of attention_in.h, which becomes c. Writes q, and index_q where it is
// wanted.
void make_queries(const Context& context, const AttentionInArgs& args, const TensorView& latent);

// Null: finish_heads_cuda() takes the queries of these arguments; else why not.
const char* finish_heads_cuda_reject(const Context& context, const AttentionInArgs& args);

// args.q [t, h, d], in place. The order of additions is not that of head_norm, but the same for any
// number of tokens.
void finish_heads_cuda(const Context& context, const AttentionInArgs& args);

}  // namespace dsv4
