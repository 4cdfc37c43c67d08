// What attention_in writes to the caches and to the compressors' states, from the products of x, in
// one launch: the window's rows, state, entries that close, index keys. For few tokens; the queries
// are not part of it.

#pragma once

#include "dsv4/ops/attention_in/attention_in.h"

namespace dsv4 {

// Products of x [t, D] with the weights of AttentionInArgs; c, c': columns of the states.
struct AppendInputs {
  ConstTensorView kv;                    // [t, d] bf16: wkv
  ConstTensorView entry_kv, entry_gate;  // [t, c] f32: compressor.wkv, wgate; with state
  ConstTensorView key_kv, key_gate;      // [t, c'] f32: those of the indexer; with index_state
};

// Null: append_rows() takes these arguments; else why not.
const char* append_rows_reject(const Context& context, const AttentionInArgs& args);

// Has the bits of the small ops (attention_in_parts.cc).
void append_rows(const Context& context, const AttentionInArgs& args, const AppendInputs& inputs);

}  // namespace dsv4
