// A call of sm90_fused as parameters of its kernels. Shared by launch.cu and the test that runs in
// the emulator. The first launch is that of sm90_few.

#pragma once

#include "dsv4/ops/model/moe/sm90_few/call.cuh"
#include "dsv4/ops/model/moe/sm90_fused/config.cuh"
#include "dsv4/ops/parts/experts/image_call.h"

namespace dsv4::moe_kernel::sm90_fused {

// The kernels, one kind of image in each file that instance.cu becomes. shared: the format of the
// shared expert's w2.
template <int K, ImageScale kScale>
void launch_gate_up(Device& device, gemm::Format shared, const GateUpParams& p);
template <int K, ImageScale kScale>
void launch_down(Device& device, int tokens, const DownParams& p);
// As parts of a block of one token (parts_of_ranks_call.cuh).
template <int K, ImageScale kScale>
void launch_down_with_shared(Device& device, const DownParams& p);

// By KbitImage::kind(): codebooks on the e4m3 grid have at most 4 bits.
using GateUpLaunch = void (*)(Device&, gemm::Format, const GateUpParams&);
inline constexpr GateUpLaunch kGateUp[KbitImage::kKinds] = {
    launch_gate_up<2, ImageScale::kE4M4>,  launch_gate_up<3, ImageScale::kE4M4>,
    launch_gate_up<4, ImageScale::kE4M4>,  nullptr,
    launch_gate_up<4, ImageScale::kUe8m0>, launch_gate_up<4, ImageScale::kE4M3>};

// Temporaries of a call: those of sm90_few, without what its router stores, and the hidden values
// of the routed experts, [entries * t, inner] bf16.
struct Intermediates {
  sm90_few::Intermediates inputs;
  TensorView hidden;
};

template <class Make>
Intermediates make_intermediates(const MoeArgs& args, const Make& make) {
  const int64_t t = args.x.dim(0), k = args.experts_per_token;
  return {.inputs = sm90_few::make_intermediates(args, make),
          .hidden = make(DType::kBF16, {t * t * k, args.routed.inner()})};
}

inline ExpertsArgs routed_args(const MoeArgs& args, const Intermediates& temporaries) {
  return {.x = args.x,
          .stack = args.routed,
          .experts = temporaries.inputs.chosen,
          .weights = temporaries.inputs.share,
          .swiglu_limit = args.swiglu_limit,
          .acc = args.acc};
}

// The format of w2.
inline gemm::Format format_of_shared(const MoeArgs& args,
                                     const sm90_few::Intermediates& temporaries) {
  const gemm::Product p = sm90_few::product_of_w2(args, temporaries);
  return gemm::format_of(p.weight, p.in);
}
// by_columns: as in the launches of sm90_few (gemm::Shape)
inline gemm::Split split_of_shared(const MoeArgs& args, const sm90_few::Intermediates& temporaries,
                                   int num_sms, bool by_columns) {
  const gemm::Product p = sm90_few::product_of_w2(args, temporaries);
  return gemm::make_split(gemm::shape_of(p.weight, p.in, 1, by_columns), num_sms);
}
inline int shared_tiles(const MoeArgs& args) {
  return static_cast<int>(ceil_div(args.x.dim(1), int64_t{kSharedRows}));
}

// Returns nullptr, or why the kernels cannot compute it where sm90_few can.
inline const char* reject_shape(const MoeArgs& args, const Intermediates& temporaries, int num_sms,
                                bool by_columns = false) {
  if (args.x.dim(0) > kMaxTokens) return "for one or two tokens";
  if (args.experts_per_token > kMaxSlots) return "more than 8 experts of a token";
  if (args.x.dim(0) == 0) return nullptr;
  const gemm::Split split = split_of_shared(args, temporaries.inputs, num_sms, by_columns);
  const int rank_groups =
      split.rank_slabs() * gemm::slab_groups(format_of_shared(args, temporaries.inputs));
  if (split.ranks() > e4m3::kGroups || rank_groups > kRankGroups)
    return "rows of the shared expert's w2 are not in four shares of up to 512 columns";
  return shared_tiles(args) > num_sms ? "fewer SMs than tiles of w2" : nullptr;
}

template <class MakeMap>
GateUpParams make_gate_up_params(const MoeArgs& args, const Intermediates& temporaries, int num_sms,
                                 const MakeMap& make_map, bool by_columns = false) {
  const gemm::Product p = sm90_few::product_of_w2(args, temporaries.inputs);
  GateUpParams params{
      .router = router_kernel::make_routing(sm90_few::router_args(args, temporaries.inputs)),
      .tokens = static_cast<int>(args.x.dim(0)),
      .routed = experts_kernel::gate_up_of(routed_args(args, temporaries), e4m3::kReader,
                                           temporaries.hidden),
      .shared = {},
      .shared_tiles = shared_tiles(args),
      .chosen = nullptr};
  gemm::set_activations(params.shared, format_of_shared(args, temporaries.inputs), p.in,
                        split_of_shared(args, temporaries.inputs, num_sms, by_columns), p.weight.k,
                        kMaxTokens, make_map);
  params.shared.matrix[0] = gemm::make_matrix(p.weight, p.out, p.groups, 0, make_map, kSharedRows);
  return params;
}

inline DownParams make_down_params(const MoeArgs& args, const Intermediates& temporaries) {
  DownParams params{
      .router = router_kernel::make_routing(sm90_few::router_args(args, temporaries.inputs)),
      .waits_first = false,
      .routed = experts_kernel::down_of(routed_args(args, temporaries), e4m3::kReader,
                                        temporaries.hidden),
      .slots = 1,
      .shared_y = temporaries.inputs.y.as<bf16>(),
      .shared_stride = temporaries.inputs.y.row_stride(),
      .shared = {},
      .acc = args.acc.as<float>(),
      .acc_stride = args.acc.row_stride()};
  params.slots = kTiles / (2 * params.routed.chunks);
  return params;
}

}  // namespace dsv4::moe_kernel::sm90_fused
