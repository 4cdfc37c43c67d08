// A call of sm90_few as parameters of its kernels. Shared by launch.cu and the test that runs in
// the emulator.

#pragma once

#include <cmath>

#include "dsv4/ops/gemm/sm90/small_m/call.cuh"
#include "dsv4/ops/model/moe/moe.h"
#include "dsv4/ops/parts/router/routing.cuh"

namespace dsv4::moe_kernel::sm90_few {

// w1 and w3: tile 2 i has rows of w1, tile 2 i + 1 the same rows of w3, in one cluster.
struct GateUp : gemm::Params<2> {
  static constexpr bool kInterleaved = true;
  bf16* hidden = nullptr;  // [t, inner]
  int64_t hidden_stride = 0;
  float limit = 0;
};

using InputParams = gemm::TwoFormatsOf<GateUp, gemm::Params<1>>;

struct DownParams {
  gemm::Params<1> down;
  router_kernel::Routing router;
  int product_ctas = 0, routing_ctas = 0;  // along x
};

// Three CTAs of the first kernel fit on an SM. Its tiles are few: 36 of V4-Flash.
inline constexpr int kCtasPerSm = 3;

inline const ExpertWeights& shared_expert(const MoeArgs& args) {
  return args.shared.file()[0];
}

// Temporaries of a call.
struct Intermediates {
  TensorView logits, hidden, y;  // [t, e] f32, [t, inner], [t, D] bf16
  TensorView chosen, share;      // [t, k] I32, f32
};

// make: of a dtype and a shape.
template <class Make>
Intermediates make_intermediates(const MoeArgs& args, const Make& make) {
  const int64_t t = args.x.dim(0), k = args.experts_per_token;
  return {.logits = make(DType::kF32, {t, args.gate.n}),
          .hidden = make(DType::kBF16, {t, args.shared.inner()}),
          .y = make(DType::kBF16, {t, args.x.dim(1)}),
          .chosen = make(DType::kI32, {t, k}),
          .share = make(DType::kF32, {t, k})};
}

// The products of x; only the gate's has an output as such.
struct InputTargets {
  gemm::Target all[3];

  InputTargets(const MoeArgs& args, const Intermediates& temporaries)
      : all{{shared_expert(args).w1, {}},
            {shared_expert(args).w3, {}},
            {args.gate, temporaries.logits}} {}
};

inline gemm::TwoFormats formats_of_inputs(const MoeArgs& args, const InputTargets& targets,
                                          int num_sms, int prologue_bytes = 0,
                                          bool by_columns = false) {
  const auto shape_of = [&](gemm::Format format) {
    gemm::Shape shape = gemm::TwoFormats::shape_of(format, targets.all, args.x.dim(0),
                                                   args.x.dim(1), prologue_bytes, by_columns);
    shape.ctas_per_sm = kCtasPerSm;
    return shape;
  };
  gemm::Shape gate_up = shape_of(gemm::TwoFormats::q8_format(targets.all));
  gate_up.tiles_of_cluster = 2;
  return gemm::TwoFormats(gate_up, shape_of(gemm::Format::kBf16), num_sms);
}

// quantized: x as w1 and w3 take it.
template <class MakeMap>
InputParams make_input_params(const gemm::TwoFormats& formats, const MoeArgs& args,
                              const InputTargets& targets, const Intermediates& temporaries,
                              const gemm::Activations& quantized, const MakeMap& make_map) {
  auto params =
      gemm::make_two_format_params<InputParams>(formats, targets.all, args.x, quantized, make_map);
  params.q8.hidden = temporaries.hidden.as<bf16>();
  params.q8.hidden_stride = temporaries.hidden.row_stride();
  params.q8.limit = args.swiglu_limit > 0 ? args.swiglu_limit : HUGE_VALF;
  return params;
}

inline gemm::Product product_of_w2(const MoeArgs& args, const Intermediates& temporaries) {
  return {.in = {.x = temporaries.hidden, .quantize = true},
          .weight = shared_expert(args).w2,
          .out = temporaries.y};
}

inline RouterArgs router_args(const MoeArgs& args, const Intermediates& temporaries) {
  return {.logits = temporaries.logits,
          .bias = args.bias,
          .tid2eid = args.tid2eid,
          .ids = args.ids,
          .route_scale = args.route_scale,
          .normalize = args.normalize,
          .experts = temporaries.chosen,
          .weights = temporaries.share};
}

// One token for each warp of the clusters that route.
template <class MakeMap>
DownParams make_down_params(const gemm::Product& p, const RouterArgs& router,
                            const gemm::Split& split, int tokens, const MakeMap& make_map) {
  constexpr int kWarps = gemm::kThreads / kWarp;
  const int64_t of_tile = std::min<int64_t>(tokens, router.logits.dim(0));
  return {
      .down = gemm::make_params(p, split, tokens, make_map),
      .router = router_kernel::make_routing(router),
      .product_ctas = split.clusters() * split.ranks(),
      .routing_ctas = static_cast<int>(ceil_div(of_tile, split.ranks() * kWarps)) * split.ranks()};
}

}  // namespace dsv4::moe_kernel::sm90_few
