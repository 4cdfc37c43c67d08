// The two parts of a block of one token (moe_hidden.h, moe_output.h), between which ranks exchange
// hidden values, as parameters of the kernels. Shared by parts_of_ranks.cu and the test that runs
// in the emulator.
//
//   first part    inputs of sm90_few | gate_up without w2: h of one token is in the order of the
//                 experts, as an entry is an expert
//   exchange      of h and of the shared expert's
//   second part   down with w2: routes from the same logits as the first part

#pragma once

#include "dsv4/ops/model/moe/moe_hidden.h"
#include "dsv4/ops/model/moe/moe_output.h"
#include "dsv4/ops/model/moe/sm90_fused/call.cuh"

namespace dsv4::moe_kernel::sm90_fused {

using SharedConfig = gemm::Config<gemm::Format::kFp8, kPairs>;  // of w2

// weights: of the choices, which no kernel stores
inline RouterArgs router_args(const MoeHiddenArgs& args, const TensorView& weights) {
  return {.logits = args.logits,
          .bias = args.bias,
          .tid2eid = args.tid2eid,
          .ids = args.ids,
          .route_scale = args.route_scale,
          .normalize = args.normalize,
          .experts = args.chosen,
          .weights = weights};
}

inline GateUpParams make_gate_up_params(const MoeHiddenArgs& args) {
  const ExpertsArgs routed{.x = args.x, .stack = args.routed, .swiglu_limit = args.swiglu_limit};
  return {.router = router_kernel::make_routing(router_args(args, {})),
          .tokens = 1,
          .routed = experts_kernel::gate_up_of(routed, e4m3::kReader, args.hidden),
          .shared = {},
          .shared_tiles = 0,
          .chosen = args.chosen.as<int32_t>()};
}

// w2 of the shared expert, whose rows the kernel keeps.
inline gemm::Product product_of_w2(const MoeOutputArgs& args) {
  const WeightView& w2 = args.shared.file()[0].w2;
  return {.in = {.x = args.shared_hidden, .quantize = true},
          .weight = w2,
          .out = TensorView(TensorMeta::contiguous(DType::kBF16, {1, w2.n}), unmapped_address(0))};
}

// The shares follow from the columns alone, whatever rows a rank has.
inline gemm::Split split_of_w2(const MoeOutputArgs& args, int num_sms) {
  const gemm::Product p = product_of_w2(args);
  return gemm::make_split(gemm::shape_of(p.weight, p.in, 1, true), num_sms);
}

// Returns nullptr, or why the second part is no call for the kernel.
inline const char* reject_shape(const MoeOutputArgs& args, int num_sms) {
  if (args.chosen.dim(1) > kMaxSlots) return "more than 8 experts of a token";
  const WeightView& w2 = args.shared.file()[0].w2;
  if (w2.format != WeightFormat::kFp8Block) return "for a shared expert in fp8";
  if (2 * args.routed.images().down.units_along_k() > kXTiles)
    return "rows of down of more than 4096 columns";
  const gemm::Split split = split_of_w2(args, num_sms);
  if (split.ranks() > e4m3::kGroups || split.rank_slabs() > kRankGroups)
    return "rows of the shared expert's w2 are not in four shares of up to 512 columns";
  return ceil_div(args.acc.dim(1), int64_t{DownShape<1, SharedConfig>::kRows}) > num_sms
             ? "fewer SMs than tiles of rows"
             : nullptr;
}

template <class MakeMap>
DownParams make_down_params(const MoeOutputArgs& args, int num_sms, const MakeMap& make_map) {
  const gemm::Product p = product_of_w2(args);
  const RouterArgs router{.logits = args.logits,
                          .bias = args.bias,
                          .tid2eid = args.tid2eid,
                          .ids = args.ids,
                          .experts = {args.chosen, unmapped_address(0)}};  // not stored
  DownParams params{
      .router = router_kernel::make_routing(router),
      .waits_first = !args.first.logits_are_complete,
      .routed = experts_kernel::down_of({.stack = args.routed}, e4m3::kReader, args.hidden),
      .slots = 1,
      .shared_y = nullptr,
      .shared_stride = 0,
      .shared = {},
      .acc = args.acc.as<float>(),
      .acc_stride = args.acc.row_stride()};
  params.slots = kXTiles / (2 * params.routed.chunks);
  gemm::set_activations(params.shared, gemm::Format::kFp8, p.in, split_of_w2(args, num_sms),
                        p.weight.k, kMaxTokens, make_map);
  params.shared.matrix[0] =
      gemm::make_matrix(p.weight, p.out, p.groups, 0, make_map, DownShape<1, SharedConfig>::kRows);
  return params;
}

}  // namespace dsv4::moe_kernel::sm90_fused
