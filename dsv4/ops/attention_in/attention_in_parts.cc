#include "dsv4/ops/attention_in/attention_in_impls.h"
#include "dsv4/ops/attention_in/queries.h"
#include "dsv4/ops/kv_insert/kv_insert.h"
#include "dsv4/ops/linear/projection.h"
#include "dsv4/ops/norm/norm.h"
#include "dsv4/ops/quant/quant.h"
#include "dsv4/ops/rope/rope.h"
#if DSV4_CUDA
#include "dsv4/ops/attention_in/sm90_few/append.h"
#endif

namespace dsv4 {
namespace {

struct Call {
  const Context& context;
  const AttentionInArgs& args;

  int64_t num_tokens() const { return args.x.dim(0); }
  bool official() const { return context.numerics == Numerics::kOfficial; }
  TensorView activation(std::initializer_list<int64_t> shape) const {
    return workspace(context).take(activation_dtype(context), shape);
  }
  void normalize(const TensorView& x, const ConstTensorView& weight) const {
    rms_norm(context, {.x = x, .weight = weight, .out = x, .eps = args.norm_eps});
  }
  void rotate(const TensorView& x, const ConstTensorView& positions) const {
    rope(context, {.x = x, .positions = positions, .freqs = args.freqs});
  }
};

// c: RMS(x wq_a; q_norm) -> [t, Q]
TensorView latent_query(const Call& call, Projection& x) {
  const AttentionInWeights& w = call.args.weights;
  const TensorView c = call.activation({call.num_tokens(), w.wq_a.n});
  x.into(w.wq_a, c);
  call.normalize(c, w.q_norm);
  return c;
}

// Raw keys of this step (each both key and value) into the window.
void append_window(const Call& call, Projection& x) {
  const Scratch::Scope scope(workspace(call.context));
  const AttentionInArgs& args = call.args;
  const int64_t t = call.num_tokens(), d = args.weights.wkv.n;
  const TensorView k = call.activation({t, d});
  x.into(args.weights.wkv, k);
  call.normalize(k, args.weights.kv_norm);
  call.rotate(k.reshape({t, 1, d}), args.positions);
  kv_insert(call.context, {.x = k, .rows = args.window_rows, .pool = args.window});
}

// Pools the blocks that close in this step; normalized and rotated entries [n, width].
TensorView close_entries(const Call& call, const CompressorWeights& w, const StatePool& state,
                         Projection& x) {
  const AttentionInArgs& args = call.args;
  const StateLayout& layout = state.layout;
  const int64_t t = call.num_tokens(), closed = args.entry_rows.dim(0), width = layout.width;
  const TensorView e = call.activation({closed, width});
  {
    Scratch& scratch = workspace(call.context);
    const Scratch::Scope scope(scratch);
    const TensorView kv = scratch.take(DType::kF32, {t, layout.columns()});
    const TensorView gate = scratch.take(DType::kF32, {t, layout.columns()});
    x.plain(w.wkv, kv);
    x.plain(w.wgate, gate);
    compressor(call.context, {.layout = layout,
                              .kv = kv,
                              .gate = gate,
                              .ape = w.ape,
                              .cu_tokens = args.cu_tokens,
                              .start = args.start,
                              .state_slots = args.state_slots,
                              .state = state.slots,
                              .out = e});
  }
  if (closed == 0) return e;
  call.normalize(e, w.norm);
  call.rotate(e.reshape({closed, 1, width}), args.entry_positions);
  return e;
}

void append_entries(const Call& call, Projection& x) {
  const AttentionInArgs& args = call.args;
  const Scratch::Scope scope(workspace(call.context));
  const TensorView e = close_entries(call, args.weights.compressor, args.state, x);
  if (args.entry_rows.dim(0) == 0) return;
  kv_insert(call.context, {.x = e, .rows = args.entry_rows, .pool = args.entries});
}

void append_keys(const Call& call, Projection& x) {
  const AttentionInArgs& args = call.args;
  const Scratch::Scope scope(workspace(call.context));
  const TensorView keys = close_entries(call, args.weights.indexer.compressor, args.index_state, x);
  if (args.entry_rows.dim(0) == 0) return;
  if (call.official()) hadamard(call.context, {.x = keys, .out = keys});
  index_insert(call.context, {.x = keys, .rows = args.entry_rows, .pool = args.keys});
}

// All rows of this step: those of the window, of entries and of index keys.
void append_all(const Call& call, Projection& x) {
  append_window(call, x);
  if (call.args.state.layout.ratio > 0) append_entries(call, x);
  if (call.args.index_state.layout.ratio > 0) append_keys(call, x);
}

#if DSV4_CUDA
// The same in one launch after the products.
void append_at_once(const Call& call, Projection& x) {
  const AttentionInArgs& args = call.args;
  const AttentionInWeights& w = args.weights;
  Scratch& scratch = workspace(call.context);
  const Scratch::Scope scope(scratch);
  const int64_t t = call.num_tokens();
  AppendInputs inputs;
  const TensorView kv = call.activation({t, w.wkv.n});
  x.into(w.wkv, kv);
  inputs.kv = kv;
  const auto product = [&](const WeightView& weight) {
    const TensorView out = scratch.take(DType::kF32, {t, weight.n});
    x.plain(weight, out);
    return out;
  };
  if (args.state.layout.ratio > 0) {
    inputs.entry_kv = product(w.compressor.wkv);
    inputs.entry_gate = product(w.compressor.wgate);
  }
  if (args.index_state.layout.ratio > 0) {
    inputs.key_kv = product(w.indexer.compressor.wkv);
    inputs.key_gate = product(w.indexer.compressor.wgate);
  }
  append_rows(call.context, args, inputs);
}
#endif

}  // namespace

void attention_in_parts(const Context& context, const AttentionInArgs& args) {
  const Scratch::Scope scope(workspace(context));
  const Call call{context, args};
  Projection x(context, args.x);
  const TensorView latent = latent_query(call, x);
  make_queries(context, args, latent);
#if DSV4_CUDA
  const bool at_once = context.device != nullptr && append_rows_reject(context, args) == nullptr;
  at_once ? append_at_once(call, x) : append_all(call, x);
#else
  append_all(call, x);
#endif
  if (args.index_q.rank > 0) x.plain(args.weights.indexer.weights_proj, args.index_weights);
}

}  // namespace dsv4
