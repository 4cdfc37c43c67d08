#include "dsv4/ops/model/attention_in/attention_in.h"
#include "dsv4/ops/model/attention_in/queries.h"
#include "dsv4/ops/model/attention_in/rows.h"
#include "dsv4/ops/parts/linear/projection.h"
#if DSV4_CUDA
#include "dsv4/ops/model/attention_in/sm90_few/append.h"
#endif

namespace dsv4::attention_in_kernel::parts {
namespace {

// Products of x, taken from the workspace.
class Products {
 public:
  Products(const Context& context, const AttentionInArgs& args)
      : context_(context), t_(args.x.dim(0)), x_(context, args.x) {}

  // x is the boundary's, and Q8 of it, where the first product takes it, is made with it.
  void compute(HcBoundaryArgs boundary, const WeightView& first) {
    if (x_.codes().rank > 0 && first.quantized_activations()) {
      boundary.codes = x_.codes(), boundary.scales = x_.scales();
      x_.codes_are_made();
    }
    hc_boundary(context_, boundary);
  }

  TensorView quantized(const WeightView& weight) {
    const TensorView out = workspace(context_).take(activation_dtype(context_), {t_, weight.n});
    x_.into(weight, out);
    return out;
  }
  TensorView plain(const WeightView& weight) {
    const TensorView out = workspace(context_).take(DType::kF32, {t_, weight.n});
    x_.plain(weight, out);
    return out;
  }
  void plain(const WeightView& weight, const TensorView& out) { x_.plain(weight, out); }

 private:
  const Context& context_;
  int64_t t_;
  Projection x_;
};

// All rows of this step: those of the window, of entries and of index keys. Products are computed
// when they are needed, and their memory is reused.
void append_all(const Context& context, const AttentionInArgs& args, Products& products) {
  const AttentionInWeights& w = args.weights;
  Scratch& scratch = workspace(context);
  {
    const Scratch::Scope scope(scratch);
    append_window(context, args, products.quantized(w.wkv));
  }
  if (args.state.layout.ratio > 0) {
    const Scratch::Scope scope(scratch);
    const TensorView kv = products.plain(w.compressor.wkv);
    append_entries(context, args, kv, products.plain(w.compressor.wgate));
  }
  if (args.index_state.layout.ratio > 0) {
    const Scratch::Scope scope(scratch);
    const TensorView kv = products.plain(w.indexer.compressor.wkv);
    append_keys(context, args, kv, products.plain(w.indexer.compressor.wgate));
  }
}

#if DSV4_CUDA
// What append_all() does, in one launch after the products.
void append_at_once(const Context& context, const AttentionInArgs& args, Products& products) {
  const AttentionInWeights& w = args.weights;
  const Scratch::Scope scope(workspace(context));
  AppendInputs inputs{.kv = products.quantized(w.wkv)};
  if (args.state.layout.ratio > 0) {
    inputs.entry_kv = products.plain(w.compressor.wkv);
    inputs.entry_gate = products.plain(w.compressor.wgate);
  }
  if (args.index_state.layout.ratio > 0) {
    inputs.key_kv = products.plain(w.indexer.compressor.wkv);
    inputs.key_gate = products.plain(w.indexer.compressor.wgate);
  }
  append_rows(context, args, inputs);
}
#endif

}  // namespace

void run(const Context& context, const AttentionInArgs& args) {
  const Scratch::Scope scope(workspace(context));
  Products products(context, args);
  if (is_given(args.boundary)) products.compute(args.boundary, args.weights.wq_a);
  make_queries(context, args, products.quantized(args.weights.wq_a));
#if DSV4_CUDA
  const bool at_once = context.device != nullptr && append_rows_reject(context, args) == nullptr;
  at_once ? append_at_once(context, args, products) : append_all(context, args, products);
#else
  append_all(context, args, products);
#endif
  if (args.index_q.rank > 0) products.plain(args.weights.indexer.weights_proj, args.index_weights);
}

}  // namespace dsv4::attention_in_kernel::parts
