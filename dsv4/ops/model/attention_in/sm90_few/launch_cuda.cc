// attention_in for few tokens: all products of x in one launch (gemm/sm90), everything else in
// another (query.h). Where bits must not depend on the batch, they take any number of tokens:
// finish_many() computes the queries of more than 64, and separate ops append their rows. Queries
// of weights that query.h does not take are computed by separate ops for any number of tokens.

#include "dsv4/ops/gemm/sm90/plan.h"
#include "dsv4/ops/gemm/sm90/small_m.h"
#include "dsv4/ops/model/attention_in/queries.h"
#include "dsv4/ops/model/attention_in/sm90_few/append.h"
#include "dsv4/ops/model/attention_in/sm90_few/query.h"
#include "dsv4/ops/model/hc_boundary/block_input.h"

namespace dsv4::attention_in_kernel::sm90_few {
namespace {

// The products of x: weights and where they go.
class Products {
 public:
  TensorView latent;  // [t, Q] bf16
  AppendInputs append;

  // Takes outputs from the workspace; without one (a question whether the kernels take the call)
  // they have no memory.
  Products(const AttentionInArgs& args, Scratch* scratch) : t_(args.x.dim(0)), scratch_(scratch) {
    const AttentionInWeights& w = args.weights;
    latent = add(w.wq_a, DType::kBF16);
    append.kv = add(w.wkv, DType::kBF16);
    if (args.state.layout.ratio > 0) {
      append.entry_kv = add(w.compressor.wkv, DType::kF32);
      append.entry_gate = add(w.compressor.wgate, DType::kF32);
    }
    if (args.index_state.layout.ratio > 0) {
      append.key_kv = add(w.indexer.compressor.wkv, DType::kF32);
      append.key_gate = add(w.indexer.compressor.wgate, DType::kF32);
    }
    if (args.index_q.rank > 0) targets_[count_++] = {w.indexer.weights_proj, args.index_weights};
  }
  std::span<const gemm::Target> targets() const { return {targets_, count_}; }

 private:
  TensorView add(const WeightView& weight, DType dtype) {
    TensorView out(TensorMeta::contiguous(dtype, {t_, weight.n}), nullptr);
    if (scratch_ != nullptr) out = scratch_->take(dtype, {t_, weight.n});
    targets_[count_++] = {weight, out};
    return out;
  }

  int64_t t_;
  Scratch* scratch_;
  gemm::Target targets_[gemm::kQ8Targets + gemm::kBf16Targets];
  size_t count_ = 0;
};

}  // namespace

const char* reject(const Context& context, const AttentionInArgs& args) {
  const WeightFormat format = args.weights.wq_a.format;
  const bool kbit = format == WeightFormat::kKbit;
  if (!kbit && format != WeightFormat::kFp8Block) return "for fp8 and k-bit weights of queries";
  if (args.weights.wkv.format != format) return "keys in another format than queries";
  // Where the bits of a token must not depend on the batch, larger batches take the same products.
  if (args.x.dim(0) > (kbit ? gemm::kKbitTokens : gemm::kMaxTokens) &&
      !context.need_batch_invariant)
    return "for up to 64 tokens, 8 with k-bit weights";
  if (args.q.dtype != DType::kBF16) return "for bf16 queries";
  if (args.q.dim(1) == 0) return "no heads";
  if (!context.need_batch_invariant)
    if (const char* why = append_rows_reject(context, args)) return why;
  const Products products(args, nullptr);
  return kbit ? gemm::reject_kbit(context, args.x, products.targets())
              : gemm::reject(context, args.x, products.targets());
}

void run(const Context& given, const AttentionInArgs& args) {
  // The ops that are called here are this implementation's own.
  Context context = given;
  context.observer = nullptr, context.force_impl = {};
  Scratch& scratch = workspace(context);
  const Scratch::Scope scope(scratch);
  const Products products(args, &scratch);
  input_products(context, args.boundary, args.x, products.targets());
  const TensorView& c = products.latent;
  const bool at_once = append_rows_reject(context, args) == nullptr;
  const bool fused = finish_few_reject(context, args) == nullptr;
  if (fused && at_once && appends_rows(args)) return finish_few(context, args, c, &products.append);
  if (fused && takes_many(context, args)) {
    finish_many(context, args, c);
  } else {
    fused ? finish_few(context, args, c, nullptr) : make_queries(context, args, c);
  }
  at_once ? append_rows(context, args, products.append)
          : append_by_ops(context, args, products.append);
}

}  // namespace dsv4::attention_in_kernel::sm90_few
