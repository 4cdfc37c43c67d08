#include "dsv4/model/moe.h"

#include "dsv4/model/ranks.h"
#include "dsv4/ops/model/moe/moe.h"
#include "dsv4/ops/parts/experts_fetch/experts_fetch.h"
#include "dsv4/ops/parts/experts_fetch/fetch_beside.h"

namespace dsv4 {

void run_moe(const Step& step, const MoeWeights& weights, const HcBoundaryArgs& boundary,
             const TensorView& acc) {
  if (step.ranks != nullptr) return moe_of_ranks(step, weights, boundary, acc);
  const ModelConfig& m = step.config;
  ExpertsFetchArgs fetch = weights.fetch;
  MoeArgs args{.x = boundary.x,
               .boundary = boundary,
               .ids = step.ids,
               .gate = weights.gate,
               .bias = weights.bias,
               .tid2eid = weights.tid2eid,
               .routed = weights.stack(),
               .shared = weights.shared,
               .experts_per_token = m.experts_per_token,
               .route_scale = m.route_scale,
               .normalize = m.normalize_weights,
               .swiglu_limit = m.swiglu_limit,
               .acc = acc,
               .fetch = fetch.homes.empty() ? nullptr : &fetch};
  ExpertImages images = weights.images;
  if (step.waves != nullptr) {
    step.waves->begin_layer(step.layer, images);
    args.routed = images, args.fetch = nullptr;
    moe(step.context, args);
    return step.waves->end_layer(step.layer);
  }
  if (step.beside != nullptr && args.fetch != nullptr) {
    fetch.beside = step.beside, fetch.turn_of = step.beside->lists().turn_of;
    images.turns = step.beside;
    args.routed = images;
  }
  moe(step.context, args);
}

}  // namespace dsv4
