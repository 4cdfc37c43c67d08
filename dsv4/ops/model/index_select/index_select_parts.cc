#include <algorithm>

#include "dsv4/ops/model/index_select/index_select.h"
#include "dsv4/ops/parts/indexer/indexer.h"
#include "dsv4/tensor/scratch.h"

namespace dsv4::index_select_kernel::parts {

constexpr int64_t kScoreTile = 64;  // queries at a time: [64, max_visible] f32 fits in cache

void run(const Context& context, const IndexSelectArgs& args) {
  const int64_t t = args.q.dim(0);
  for (int64_t first = 0; first < t; first += kScoreTile) {
    const Scratch::Scope tile(workspace(context));
    const int64_t last = std::min(first + kScoreTile, t);
    const TensorView scores =
        workspace(context).take(DType::kF32, {last - first, args.max_visible});
    const ConstTensorView visible = args.visible.slice(0, first, last);
    const ConstTensorView sequence = args.sequence.slice(0, first, last);
    index_scores(context, {.q = args.q.slice(0, first, last),
                           .weights = args.weights.slice(0, first, last),
                           .weight_scale = args.weight_scale,
                           .keys = args.keys,
                           .pages = args.pages,
                           .sequence = sequence,
                           .visible = visible,
                           .scores = scores});
    top_k(context, {.scores = scores,
                    .visible = visible,
                    .pages = args.pages,
                    .sequence = sequence,
                    .page_entries = args.keys.page_entries,
                    .indices = args.indices.slice(0, first, last)});
  }
}

}  // namespace dsv4::index_select_kernel::parts
