// The oracles of index_scores and top_k, with scores stored in f32 in between.

#include "dsv4/ops/model/index_select/index_select_case.h"

#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/indexer/indexer_case.h"

namespace dsv4 {

std::vector<double> index_select_oracle(const Context& context, const IndexSelectArgs& args) {
  const int64_t t = args.q.dim(0), n = args.max_visible;
  IndexScoresArgs of_scores{.q = args.q,
                            .weights = args.weights,
                            .weight_scale = args.weight_scale,
                            .keys = args.keys,
                            .pages = args.pages,
                            .sequence = args.sequence,
                            .visible = args.visible,
                            .scores = {}};
  const Buffer shape(DType::kF32, {t, n});
  of_scores.scores = shape;
  const Buffer scores =
      oracle::stored(DType::kF32, {t, n}, index_scores_oracle(context, of_scores));
  return top_k_oracle({.scores = scores,
                       .visible = args.visible,
                       .pages = args.pages,
                       .sequence = args.sequence,
                       .page_entries = args.keys.page_entries,
                       .indices = args.indices});
}

}  // namespace dsv4
