// From the arguments of a half (halves.h) with kernel images to the parameters of its kernels,
// without launching them: the list of pairs, one of the two products, and rows between the order of
// the pairs and that of the tokens (cuda/pair_rows.h).

#pragma once

#include "dsv4/ops/parts/experts/halves.h"
#include "dsv4/ops/parts/experts/image_call.h"

namespace dsv4::experts_kernel {

struct HalfCall {
  Choices choices;
  PairLists lists;
  Params product;
  TensorView hidden;  // [pairs, i] or [pairs, I] bf16, in the order of the pairs
  TensorView y;       // [pairs, n] bf16, of the second half

  // Before the product. Else its kernel lists the pairs; lists.pair_of is stored by that of the
  // first half, and by place_rows() before that of the second.
  bool needs_list() const { return product.choices.pairs == 0; }
};

// weights: those of the router, or anything of that shape for the half that does not use them
inline HalfCall make_half(const ExpertStack& stack, const ConstTensorView& experts,
                          const ConstTensorView& weights, int64_t inner, int ctas,
                          Scratch& scratch) {
  const int64_t pairs = experts.dim(0) * experts.dim(1);
  HalfCall call;
  call.choices = {.experts = experts.as<int32_t>(),
                  .weights = weights.as<float>(),
                  .expert_stride = experts.row_stride(),
                  .weight_stride = weights.row_stride(),
                  .pairs = static_cast<int>(pairs),
                  .slots = static_cast<int>(experts.dim(1)),
                  .count = static_cast<int>(stack.size()),
                  .entry_bits = entry_bits(stack.images())};
  call.lists = take_lists(pairs, stack, ctas, scratch);
  call.hidden = scratch.take(DType::kBF16, {pairs, inner});
  return call;
}

// p: the product. The list is for it alone.
inline void set_product(HalfCall& call, Params p, const Reader& reader) {
  for (int& stages : call.lists.entry_stages) stages = p.stages;
  if (call.choices.pairs <= reader.own_pairs)
    p.choices = call.choices, p.pair_of = call.lists.pair_of;
  p.entries = call.lists.entries, p.starts = call.lists.starts[0];
  call.product = p;
}

inline HalfCall make_hidden_call(const ExpertsHiddenArgs& args, int ctas, const Reader& reader,
                                 Scratch& scratch) {
  HalfCall call =
      make_half(args.stack, args.experts, args.weights, args.hidden.dim(1), ctas, scratch);
  Params p = gate_up_of({.x = args.x, .stack = args.stack, .swiglu_limit = args.swiglu_limit},
                        reader, call.hidden);
  p.pair_weight = call.lists.weight;
  set_product(call, p, reader);
  return call;
}

inline HalfCall make_output_call(const ExpertsOutputArgs& args, int ctas, const Reader& reader,
                                 Scratch& scratch) {
  TensorMeta like_ids = args.experts;
  like_ids.dtype = DType::kF32;
  HalfCall call = make_half(args.stack, args.experts, {like_ids, args.experts.data},
                            args.hidden.dim(1), ctas, scratch);
  call.y = scratch.take(DType::kBF16, {args.hidden.dim(0), args.acc.dim(1)});
  Params p = down_of({.stack = args.stack}, reader, call.hidden);
  p.out = call.y.as<bf16>(), p.out_stride = call.y.row_stride();
  set_product(call, p, reader);
  return call;
}

}  // namespace dsv4::experts_kernel
