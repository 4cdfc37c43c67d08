// From the arguments of a half (halves.h) with kernel images to the parameters of its kernels,
// without launching them: the list of pairs and one of the two products, which reads or writes the
// rows of h where they are.

#pragma once

#include "dsv4/ops/parts/experts/halves.h"
#include "dsv4/ops/parts/experts/image_call.h"

namespace dsv4::experts_kernel {

// What all implementations for kernel images refuse.
inline const char* reject_stack(const Context& context, const ExpertStack& stack,
                                const ConstTensorView& experts) {
  if (!stack.is_image()) return "for kernel images";
  if (!reads_images(context)) return "for official numerics on Hopper";
  if (experts.empty()) return "for routed experts";
  if (stack.images().turns != nullptr) return "experts in turns";
  return stack.num_ids() > gemm::experts::kMaxExperts ? "more than 384 experts" : nullptr;
}

struct HalfCall {
  Choices choices;
  PairLists lists;
  Params product;
  TensorView y;  // [pairs, n] bf16, of the second half; by token and slot if it is the call's rows

  bool has_kept_list = false;  // of the first half

  // Else the product's kernel lists the pairs, and stores lists.pair_of.
  bool needs_list() const { return product.choices.pairs == 0; }
  bool launches_list() const { return needs_list() && !has_kept_list; }  // before the product
};

// weights: of the half that uses them
inline HalfCall make_half(const ExpertStack& stack, const ConstTensorView& experts,
                          const ConstTensorView& weights, int ctas, Scratch& scratch) {
  HalfCall call;
  call.choices = choices_of(stack, experts, weights);
  call.lists = take_lists(call.choices.pairs, stack, ctas, scratch);
  return call;
}

// p: the product. The list is for it alone.
inline void set_product(HalfCall& call, Params p, const Reader& reader) {
  p.ctas = call.lists.ctas;
  for (int& stages : call.lists.entry_stages) stages = p.stages;
  if (call.choices.pairs <= reader.own_pairs) {
    p.choices = call.choices;
    if (!call.choices.by_pair) p.pair_of = call.lists.pair_of;
  }
  p.entries = call.lists.entries, p.starts = call.lists.starts[0];
  call.product = p;
}

// The list of the second half of a first one that has a list.
inline HalfCall make_kept_list(const ExpertsHiddenArgs& args, int ctas, const Reader& reader,
                               FirstHalf& first) {
  HalfCall call = make_half(args.stack, args.experts, {}, ctas, *first.keep);
  call.choices.by_pair = true;
  set_product(call, down_of({.stack = args.stack}, reader, args.hidden), reader);
  first.list = {.entries = call.product.entries,
                .starts = call.product.starts,
                .stages = call.product.stages,
                .ctas = ctas};
  return call;
}

inline HalfCall make_hidden_call(const ExpertsHiddenArgs& args, int ctas, const Reader& reader,
                                 Scratch& scratch) {
  HalfCall call = make_half(args.stack, args.experts, args.weights, ctas, scratch);
  Params p = gate_up_of({.x = args.x, .stack = args.stack, .swiglu_limit = args.swiglu_limit},
                        reader, args.hidden);
  p.pair_weight = call.lists.weight;
  p.waits_first = true;
  set_product(call, p, reader);
  return call;
}

inline HalfCall make_output_call(const ExpertsOutputArgs& args, int ctas, const Reader& reader,
                                 Scratch& scratch) {
  HalfCall call = make_half(args.stack, args.experts, {}, ctas, scratch);
  const bool by_pair = !args.rows.empty();
  call.y = by_pair ? args.rows : scratch.take(DType::kBF16, {args.hidden.dim(0), args.acc.dim(1)});
  call.choices.by_pair = by_pair;
  Params p = down_of({.stack = args.stack}, reader, args.hidden);
  p.out = call.y.as<bf16>(), p.out_stride = call.y.row_stride();
  p.out_by_pair = by_pair;
  set_product(call, p, reader);
  const FirstHalf::List& kept = args.first.list;
  if (call.needs_list() && by_pair && kept.entries != nullptr &&
      kept.stages == call.product.stages && kept.ctas == ctas) {
    call.product.entries = kept.entries, call.product.starts = kept.starts;
    call.has_kept_list = true;
  }
  // Before it waits it may read ids and what follows from them, and write nothing: neither a list
  // nor places of pairs.
  call.product.waits_first = !args.first.ids_are_complete || call.launches_list() || !by_pair;
  return call;
}

}  // namespace dsv4::experts_kernel
