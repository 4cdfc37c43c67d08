// From the arguments of a call to the parameters of its kernels, without launching them.

#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include "dsv4/base/bits.h"
#include "dsv4/ops/gemm/sm90/experts/params.h"
#include "dsv4/ops/gemm/x/pair_columns.cuh"
#include "dsv4/ops/parts/experts/expert_turns.h"
#include "dsv4/ops/parts/experts/experts.h"
#include "dsv4/tensor/scratch.h"

namespace dsv4::experts_kernel {

using gemm::experts::Choices, gemm::experts::Entry, gemm::experts::PairLists, gemm::experts::Params;
using gemm::experts::Reader, gemm::experts::Start;

// An entry has at most 1 << entry_bits pairs: one list serves both products.
inline int entry_bits(const ExpertImages& images) {
  const int most =
      std::min(gemm::most_pairs(images.gate_up.scale), gemm::most_pairs(images.down.scale));
  return std::countr_zero(static_cast<unsigned>(most));
}

// weights: those of the router; empty for what does not use them, which then has the ids there
inline Choices choices_of(const ExpertStack& stack, const ConstTensorView& experts,
                          const ConstTensorView& weights) {
  const ConstTensorView& any = weights.empty() ? experts : weights;
  return {.experts = experts.as<int32_t>(),
          .weights = reinterpret_cast<const float*>(any.data),
          .expert_stride = experts.row_stride(),
          .weight_stride = any.row_stride(),
          .pairs = static_cast<int>(experts.dim(0) * experts.dim(1)),
          .slots = static_cast<int>(experts.dim(1)),
          .count = static_cast<int>(stack.num_ids()),
          .entry_bits = entry_bits(stack.images()),
          .own_begin = static_cast<int>(stack.first_id()),
          .own_end = static_cast<int>(stack.first_id() + stack.size())};
}
inline Choices choices_of(const ExpertsArgs& args, int turn = 0) {
  Choices choices = choices_of(args.stack, args.experts, args.weights);
  if (const ExpertTurns* const turns = args.stack.images().turns; turns != nullptr)
    choices.turn_of = turns->turn_of().as<int32_t>(), choices.turn = turn;
  return choices;
}

struct Call {
  PairLists lists;
  TensorView hidden, y;  // [pairs, i], [pairs, d] bf16
  Params gate_up, down;

  bool needs_list() const { return gate_up.choices.pairs == 0; }  // before gate_up

  // The parameters of a turn (expert_turns.h), whose entries take the place of those of the turn
  // before.
  Call of_turn(int turn, int busy_sms) const {
    Call call = *this;
    call.gate_up.choices.turn = call.down.choices.turn = turn;
    for (int* const ctas : {&call.lists.ctas, &call.gate_up.ctas, &call.down.ctas})
      *ctas = std::max(1, *ctas - busy_sms);
    return call;
  }
};

inline Params product(const KbitImage& image, const ImagePlaces& places, const Codebook& codebook,
                      const Reader& reader) {
  const int chunks = static_cast<int>(image.units_along_k());
  const int strips = static_cast<int>(image.num_strips());
  const int at_once = reader.stage_strips(chunks);
  const gemm::KbitTable table = reader.table(codebook);
  // Decoders give a sixteenth of an E4M4 scale.
  const float scale_factor = image.scale == ImageScale::kE4M4 ? 16 : 1;
  return {.images = places,
          .strips = strips,
          .chunks = chunks,
          .stage_strips = at_once,
          .stages = (strips + at_once - 1) / at_once,
          .table = table,
          .columns = static_cast<int>(image.k),
          .factor = scale_factor * table.unit,
          .starts_early = true};
}

// The two products, without lists. hidden: [pairs, i]; the caller sets where down stores.
inline Params gate_up_of(const ExpertsArgs& args, const Reader& reader, const TensorView& hidden) {
  const ExpertImages& images = args.stack.images();
  Params p = product(images.gate_up, images.gate_up_places(), images.gate_up_codebook, reader);
  p.scale2 = images.scale2.as<float>();
  p.x = args.x.as<bf16>(), p.x_stride = args.x.row_stride();
  p.limit = args.swiglu_limit > 0 ? args.swiglu_limit : HUGE_VALF;
  p.out = hidden.as<bf16>(), p.out_stride = hidden.row_stride();
  p.rows = static_cast<int>(args.stack.inner());
  return p;
}
inline Params down_of(const ExpertsArgs& args, const Reader& reader,
                      const ConstTensorView& hidden) {
  const ExpertImages& images = args.stack.images();
  Params p = product(images.down, images.down_places(), images.down_codebook, reader);
  p.scale2 = images.scale2.as<float>();
  p.x = hidden.as<bf16>(), p.x_stride = hidden.row_stride();
  p.rows = static_cast<int>(images.down.n);
  return p;
}

// Temporaries from `scratch`, without the stages of the products. ctas: of the grids of both.
inline PairLists take_lists(int64_t pairs, int64_t experts, int entry_bits, int ctas,
                            Scratch& scratch) {
  const auto ints = [&](int64_t n) { return scratch.take(DType::kI32, {n}).as<int32_t>(); };
  const auto records = [&](int64_t n, size_t bytes) {
    return ints(n * static_cast<int64_t>(bytes / sizeof(int32_t)));
  };
  PairLists lists{};
  lists.weight = scratch.take(DType::kF32, {pairs}).as<float>();
  lists.pair_of = ints(pairs);
  lists.entries = reinterpret_cast<Entry*>(
      records(gemm::experts::max_entries(pairs, experts, entry_bits), sizeof(Entry)));
  for (Start*& starts : lists.starts)
    starts = reinterpret_cast<Start*>(records(ctas, sizeof(Start)));
  lists.ctas = ctas;
  return lists;
}

inline PairLists take_lists(int64_t pairs, const ExpertStack& stack, int ctas, Scratch& scratch) {
  return take_lists(pairs, stack.size(), entry_bits(stack.images()), ctas, scratch);
}

// ctas: of the grids of both products. Takes temporaries from `scratch`.
inline Call make_call(const ExpertsArgs& args, int ctas, const Reader& reader, Scratch& scratch) {
  const int64_t d = args.x.dim(1), inner = args.stack.inner(), pairs = args.x.dim(0) * slots(args);
  Call call;
  call.lists = take_lists(pairs, args.stack, ctas, scratch);
  call.hidden = scratch.take(DType::kBF16, {pairs, inner});
  call.y = scratch.take(DType::kBF16, {pairs, d});

  const auto with_lists = [&](Params p, int which) {
    p.entries = call.lists.entries, p.starts = call.lists.starts[which];
    p.ctas = ctas;
    call.lists.entry_stages[which] = p.stages;
    if (pairs <= reader.own_pairs) p.choices = choices_of(args);
    return p;
  };
  call.gate_up = with_lists(gate_up_of(args, reader, call.hidden), 0);
  call.gate_up.pair_weight = call.lists.weight;
  if (pairs <= reader.own_pairs) call.gate_up.pair_of = call.lists.pair_of;
  call.down = with_lists(down_of(args, reader, call.hidden), 1);
  call.down.out = call.y.as<bf16>(), call.down.out_stride = d;
  return call;
}

}  // namespace dsv4::experts_kernel
