#include "dsv4/ops/model/attention_in/rows.h"

#include "dsv4/ops/parts/compressor/compressor.h"
#include "dsv4/ops/parts/kv_insert/kv_insert.h"
#include "dsv4/ops/parts/norm/norm.h"
#include "dsv4/ops/parts/quant/quant.h"
#include "dsv4/ops/parts/rope/rope.h"
#include "dsv4/tensor/scratch.h"

namespace dsv4 {
namespace {

// Rows [n, width] that go to a pool: normalized and rotated in place.
void finish_rows(const Context& context, const AttentionInArgs& args, const TensorView& rows,
                 const ConstTensorView& norm, const ConstTensorView& positions) {
  rms_norm(context, {.x = rows, .weight = norm, .out = rows, .eps = args.norm_eps});
  rope(context, {.x = rows.reshape({rows.dim(0), 1, rows.dim(1)}),
                 .positions = positions,
                 .freqs = args.freqs});
}

// Pools the blocks that close in this step; normalized and rotated entries [n, width].
TensorView close_entries(const Context& context, const AttentionInArgs& args,
                         const CompressorWeights& w, const StatePool& state,
                         const ConstTensorView& kv, const ConstTensorView& gate) {
  const int64_t closed = args.entry_rows.dim(0), width = state.layout.width;
  const TensorView e = workspace(context).take(activation_dtype(context), {closed, width});
  compressor(context, {.layout = state.layout,
                       .kv = kv,
                       .gate = gate,
                       .ape = w.ape,
                       .cu_tokens = args.cu_tokens,
                       .start = args.start,
                       .state_slots = args.state_slots,
                       .state = state.slots,
                       .out = e});
  if (closed > 0) finish_rows(context, args, e, w.norm, args.entry_positions);
  return e;
}

}  // namespace

void append_window(const Context& context, const AttentionInArgs& args, const TensorView& kv) {
  finish_rows(context, args, kv, args.weights.kv_norm, args.positions);
  kv_insert(context, {.x = kv, .rows = args.window_rows, .pool = args.window});
}

void append_entries(const Context& context, const AttentionInArgs& args, const ConstTensorView& kv,
                    const ConstTensorView& gate) {
  const Scratch::Scope scope(workspace(context));
  const TensorView e = close_entries(context, args, args.weights.compressor, args.state, kv, gate);
  if (args.entry_rows.dim(0) == 0) return;
  kv_insert(context, {.x = e, .rows = args.entry_rows, .pool = args.entries});
}

void append_keys(const Context& context, const AttentionInArgs& args, const ConstTensorView& kv,
                 const ConstTensorView& gate) {
  const Scratch::Scope scope(workspace(context));
  const TensorView keys =
      close_entries(context, args, args.weights.indexer.compressor, args.index_state, kv, gate);
  if (args.entry_rows.dim(0) == 0) return;
  if (context.numerics == Numerics::kOfficial) hadamard(context, {.x = keys, .out = keys});
  index_insert(context, {.x = keys, .rows = args.entry_rows, .pool = args.keys});
}

void append_by_ops(const Context& context, const AttentionInArgs& args,
                   const AppendInputs& inputs) {
  append_window(context, args, inputs.kv);
  if (args.state.layout.ratio > 0)
    append_entries(context, args, inputs.entry_kv, inputs.entry_gate);
  if (args.index_state.layout.ratio > 0) append_keys(context, args, inputs.key_kv, inputs.key_gate);
}

}  // namespace dsv4
