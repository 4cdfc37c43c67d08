// From the arguments of a call to the parameters of its kernels, without launching them.

#pragma once

#include "dsv4/ops/gemm/sm90/image_rows/call.h"
#include "dsv4/ops/parts/experts/cuda/strided_weights.h"
#include "dsv4/ops/parts/experts/image_call.h"

namespace dsv4::experts_kernel::sm90_image {

namespace image_rows = gemm::image_rows;

inline constexpr int64_t kOwnPairs = image_rows::kOwnEntries;  // an entry has one at least

// Where the images `member` of all experts are.
inline ImagePlaces places_of(const ExpertStack& stack, Member member) {
  const auto file = stack.file();
  const std::byte* const first = (file[0].*member).data.data;
  return {.first = first,
          .distance = file.size() > 1 ? (file[1].*member).data.data - first : 0,
          .table = nullptr,
          .offset = 0};
}

inline Choices choices_of(const ExpertsArgs& args) {
  const ExpertWeights& first = args.stack.file()[0];
  return {.experts = args.experts.as<int32_t>(),
          .weights = args.weights.as<float>(),
          .expert_stride = args.experts.row_stride(),
          .weight_stride = args.weights.row_stride(),
          .pairs = static_cast<int>(args.x.dim(0) * slots(args)),
          .slots = static_cast<int>(slots(args)),
          .count = static_cast<int>(args.stack.size()),
          // One list serves both products.
          .entry_bits = std::min(image_rows::entry_bits(image_of_format(first.w1)),
                                 image_rows::entry_bits(image_of_format(first.w2))),
          .own_end = static_cast<int>(args.stack.size())};
}

struct ImageCall {
  Choices choices;
  PairLists lists;
  TensorView hidden, y;  // [pairs, i] bf16, [pairs, d] f32
  image_rows::Params gate_up, down;

  bool needs_list() const { return gate_up.choices.pairs == 0; }  // before gate_up
};

// scales: [e, 3] of w1, w3 and w2; null: 1. Takes temporaries from `scratch`.
inline ImageCall make_image_call(const ExpertsArgs& args, int ctas, const float* scales,
                                 Scratch& scratch) {
  const int64_t pairs = args.x.dim(0) * slots(args), inner = args.stack.inner();
  const ExpertWeights& first = args.stack.file()[0];
  const auto places = [&](Member member) { return places_of(args.stack, member); };
  ImageCall call;
  call.choices = choices_of(args);
  call.lists = take_lists(pairs, args.stack.size(), call.choices.entry_bits, ctas, scratch);
  call.hidden = scratch.take(DType::kBF16, {pairs, inner});
  call.y = scratch.take(DType::kF32, {pairs, args.x.dim(1)});
  call.gate_up = image_rows::make_gate_up_params(first.w1, places(&ExpertWeights::w1),
                                                 places(&ExpertWeights::w3), args.x, ctas);
  call.down = image_rows::make_params(first.w2, places(&ExpertWeights::w2), call.hidden, ctas);
  image_rows::Params* const products[] = {&call.gate_up, &call.down};
  for (int i = 0; i < gemm::experts::kProducts; ++i) {
    image_rows::Params& p = *products[i];
    p.scale2 = scales;
    p.entries = call.lists.entries, p.starts = call.lists.starts[i];
    p.choices = call.choices;
    if (pairs > kOwnPairs) p.choices.pairs = 0;
    call.lists.entry_stages[i] = p.stages;
  }
  image_rows::Params &gate_up = call.gate_up, &down = call.down;
  gate_up.gated = gemm::with_limit(gated_step_of(args));
  gate_up.out = call.hidden.as<bf16>(), gate_up.out_stride = inner;
  gate_up.pair_weight = call.lists.weight;
  if (pairs <= kOwnPairs) gate_up.pair_of = call.lists.pair_of;
  down.to = call.y.data, down.to_dtype = DType::kF32, down.to_stride = call.y.row_stride();
  return call;
}

}  // namespace dsv4::experts_kernel::sm90_image
