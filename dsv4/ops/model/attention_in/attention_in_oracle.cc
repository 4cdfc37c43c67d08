// The oracles of the ops that attention_in is made of, one after the other; what one writes is
// stored, and so rounded, before the next reads it (docs/spec/dsv4.md 13.1).

#include "dsv4/ops/model/attention_in/attention_in_case.h"

#include "dsv4/base/error.h"
#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/compressor/compressor_case.h"
#include "dsv4/ops/parts/kv_insert/kv_insert_case.h"
#include "dsv4/ops/parts/linear/linear_case.h"
#include "dsv4/ops/parts/norm/norm_case.h"
#include "dsv4/ops/parts/quant/quant_case.h"
#include "dsv4/ops/parts/rope/rope_case.h"

namespace dsv4 {
namespace {

using Vector = std::vector<double>;

struct Steps {
  const Context& context;
  const AttentionInArgs& args;

  bool official() const { return context.numerics == Numerics::kOfficial; }
  Buffer stored(std::initializer_list<int64_t> shape, const Vector& values) const {
    return oracle::stored(activation_dtype(context), shape, values);
  }
  Buffer projected(const ConstTensorView& x, const WeightView& w) const {
    return stored({x.dim(0), w.n}, projection_oracle(context, x, w));
  }
  Buffer normalized(const Buffer& x, const ConstTensorView& weight) const {
    const TensorView& v = x.view();
    return stored({v.dim(0), v.dim(1)},
                  rms_norm_oracle({.x = v, .weight = weight, .out = v, .eps = args.norm_eps}));
  }
  // x: [t, heads * d]
  Vector rotated(const Buffer& x, int64_t heads, const ConstTensorView& positions) const {
    const TensorView& v = x.view();
    return rope_oracle({.x = v.reshape({v.dim(0), heads, v.dim(1) / heads}),
                        .positions = positions,
                        .freqs = args.freqs});
  }
};

Vector queries(const Steps& steps, const Buffer& c) {
  const AttentionInArgs& args = steps.args;
  const int64_t t = args.q.dim(0), h = args.q.dim(1), d = args.q.dim(2);
  const Buffer product = steps.projected(c, args.weights.wq_b);
  const TensorView heads = product.view().reshape({t * h, d});
  const Buffer normal = steps.stored(
      {t, h * d},
      head_norm_oracle(steps.context, {.x = heads, .out = heads, .eps = args.norm_eps}));
  return steps.rotated(normal, h, args.positions);
}

Vector window_rows(const Steps& steps) {
  const AttentionInArgs& args = steps.args;
  const int64_t t = args.x.dim(0), d = args.weights.wkv.n;
  const Buffer normal =
      steps.normalized(steps.projected(args.x, args.weights.wkv), args.weights.kv_norm);
  const Buffer k = steps.stored({t, d}, steps.rotated(normal, 1, args.positions));
  return kv_insert_oracle({.x = k, .rows = args.window_rows, .pool = args.window});
}

// Entries [n, width] before they are inserted, and the state after the step.
struct Closed {
  Buffer entries;
  Vector state;
};
Closed closed_entries(const Steps& steps, const CompressorWeights& w, const StatePool& state) {
  const AttentionInArgs& args = steps.args;
  const int64_t t = args.x.dim(0), n = args.entry_rows.dim(0), columns = state.layout.columns();
  const Buffer kv =
      oracle::stored(DType::kF32, {t, columns}, linear_oracle({.x = args.x, .weight = w.wkv}));
  const Buffer gate =
      oracle::stored(DType::kF32, {t, columns}, linear_oracle({.x = args.x, .weight = w.wgate}));
  const Buffer shape(DType::kF32, {n, state.layout.width});
  CompressorWant want = compressor_oracle({.layout = state.layout,
                                           .kv = kv,
                                           .gate = gate,
                                           .ape = w.ape,
                                           .cu_tokens = args.cu_tokens,
                                           .start = args.start,
                                           .state_slots = args.state_slots,
                                           .state = state.slots,
                                           .out = shape});
  const Buffer normal = steps.normalized(steps.stored({n, state.layout.width}, want.out), w.norm);
  return {.entries =
              steps.stored({n, state.layout.width}, steps.rotated(normal, 1, args.entry_positions)),
          .state = std::move(want.state)};
}

// Rows of keys or queries [rows, d].
Buffer transformed(const Steps& steps, Buffer x) {
  if (!steps.official()) return x;
  const TensorView& v = x.view();
  return steps.stored({v.dim(0), v.dim(1)}, hadamard_oracle({.x = v, .out = v}));
}

Vector index_queries(const Steps& steps, const Buffer& c) {
  const AttentionInArgs& args = steps.args;
  const int64_t n = args.index_q.dim(0), h = args.index_q.dim(1), d = args.index_q.dim(2);
  const int64_t first = args.index_first, last = first + n;
  const Buffer product = steps.projected(c.view().slice(0, first, last), args.weights.indexer.wq_b);
  const Vector rotated = steps.rotated(product, h, args.positions.slice(0, first, last));
  const Buffer q = transformed(steps, steps.stored({n * h, d}, rotated));
  if (!steps.official()) return rotated;
  return fake_quant_oracle(
      {.x = q, .out = q, .format = FakeQuantFormat::kS4, .group = IndexLayoutFp4::kGroup});
}

}  // namespace

AttentionInWant attention_in_oracle(const Context& context, const AttentionInArgs& args) {
  DSV4_CHECK(!is_given(args.boundary), "{}", "the oracle takes x");
  const Steps steps{context, args};
  const AttentionInWeights& w = args.weights;
  const Buffer c = steps.normalized(steps.projected(args.x, w.wq_a), w.q_norm);
  AttentionInWant want{.q = queries(steps, c), .window = window_rows(steps)};
  if (args.state.layout.ratio > 0) {
    Closed closed = closed_entries(steps, w.compressor, args.state);
    want.state = std::move(closed.state);
    want.entries =
        kv_insert_oracle({.x = closed.entries, .rows = args.entry_rows, .pool = args.entries});
  }
  if (args.index_state.layout.ratio > 0) {
    Closed closed = closed_entries(steps, w.indexer.compressor, args.index_state);
    want.index_state = std::move(closed.state);
    const Buffer keys = transformed(steps, std::move(closed.entries));
    want.keys = index_insert_oracle({.x = keys, .rows = args.entry_rows, .pool = args.keys});
  }
  if (args.index_q.rank > 0) {
    want.index_q = index_queries(steps, c);
    want.index_weights = linear_oracle({.x = args.x, .weight = w.indexer.weights_proj});
  }
  return want;
}

}  // namespace dsv4
