// The implementation parts of index_select.h: index_scores and top_k, for a tile of queries at a
// time, whose scores lie in the workspace. A query's result does not depend on its tile.

#include <algorithm>

#include "dsv4/ops/model/index_select/index_select.h"
#include "dsv4/ops/parts/indexer/indexer.h"
#include "dsv4/tensor/scratch.h"

namespace dsv4::index_select_kernel::parts {
namespace {

constexpr int64_t kFewestQueries = 64;  // of a tile, however many entries they see
// Scores of a tile on a device. A launch for a few queries of a prompt leaves most of a GPU idle; a
// host keeps its smaller tiles in its caches.
constexpr int64_t kDeviceScores = int64_t{16} << 20;

// Scores for which there is memory. They grow with t and with the entries, so that the memory of
// the largest step suffices for all others.
int64_t most_scores(const Context& context, int64_t t, int64_t entries) {
  const int64_t fewest = kFewestQueries * entries;
  return std::min(t * entries,
                  context.device == nullptr ? fewest : std::max(fewest, kDeviceScores));
}

}  // namespace

void run(const Context& context, const IndexSelectArgs& args) {
  const int64_t t = args.q.dim(0), entries = args.max_visible;
  const Scratch::Scope scope(workspace(context));
  const TensorView memory =
      workspace(context).take(DType::kF32, {most_scores(context, t, entries)});
  const int64_t tile = entries == 0 ? t : memory.numel() / entries;
  for (int64_t first = 0; first < t; first += tile) {
    const int64_t last = std::min(first + tile, t);
    const TensorView scores(TensorMeta::contiguous(DType::kF32, {last - first, entries}),
                            memory.data);
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
