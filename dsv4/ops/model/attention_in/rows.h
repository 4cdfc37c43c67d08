// What attention_in writes to the caches and to the compressors' states, from the products of x, by
// the ops that it is made of.

#pragma once

#include "dsv4/ops/model/attention_in/attention_in.h"

namespace dsv4 {

// Products of x [t, D] with the weights of AttentionInArgs; c, c': columns of the states.
struct AppendInputs {
  TensorView kv;                    // [t, d] bf16, or f32: wkv; may be overwritten
  TensorView entry_kv, entry_gate;  // [t, c] f32: compressor.wkv, wgate; with state
  TensorView key_kv, key_gate;      // [t, c'] f32: those of the indexer; with index_state
};

// The window's rows.
void append_window(const Context& context, const AttentionInArgs& args, const TensorView& kv);
// State and the entries that close; with state.
void append_entries(const Context& context, const AttentionInArgs& args, const ConstTensorView& kv,
                    const ConstTensorView& gate);
// The indexer's state and the keys that close; with index_state.
void append_keys(const Context& context, const AttentionInArgs& args, const ConstTensorView& kv,
                 const ConstTensorView& gate);

// All of them.
void append_by_ops(const Context& context, const AttentionInArgs& args, const AppendInputs& inputs);

}  // namespace dsv4
