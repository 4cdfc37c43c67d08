// What attention_in writes to the caches and to the compressors' states, from the products of x, in
// one launch: the window's rows, state, entries that close, index keys. For few tokens; the queries
// are not part of it.

#pragma once

#include "dsv4/ops/model/attention_in/rows.h"

namespace dsv4 {

// Null: append_rows() takes these arguments; else why not.
const char* append_rows_reject(const Context& context, const AttentionInArgs& args);

// Has the bits of append_by_ops().
void append_rows(const Context& context, const AttentionInArgs& args, const AppendInputs& inputs);

}  // namespace dsv4
