// The queries of attention_in.h from their latent, by the ops that they are made of.

#pragma once

#include "dsv4/ops/model/attention_in/attention_in.h"

namespace dsv4 {

// latent: [t, Q], x wq_a of attention_in.h, which becomes c. Writes q, and index_q where it is
// wanted.
void make_queries(const Context& context, const AttentionInArgs& args, const TensorView& latent);

}  // namespace dsv4
