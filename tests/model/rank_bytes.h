// What a run over several ranks leaves in the memory of each, as bytes to be compared.

#pragma once

#include <vector>

#include "dsv4/engine/executor.h"
#include "dsv4/engine/rank_memories.h"

namespace dsv4::test {

using Bytes = std::vector<std::byte>;

inline void append(Bytes& bytes, const std::byte* data, int64_t count) {
  bytes.insert(bytes.end(), data, data + count);
}

// [world]: a tensor in the memory of the caches; a whole model is one rank.
inline std::vector<Bytes> on_every_rank(Executor& executor, const ConstTensorView& view) {
  const auto* memories = dynamic_cast<const RankMemories*>(&executor.runner().memory());
  std::vector<Bytes> ranks(memories == nullptr ? 1 : static_cast<size_t>(memories->world()));
  for (size_t rank = 0; rank < ranks.size() && !view.empty(); ++rank)
    append(ranks[rank],
           memories == nullptr ? view.data : memories->at(static_cast<int>(rank), view.data),
           view.bytes());
  return ranks;
}

inline void append(std::vector<Bytes>& ranks, const std::vector<Bytes>& more) {
  ranks.resize(more.size());
  for (size_t rank = 0; rank < more.size(); ++rank)
    append(ranks[rank], more[rank].data(), std::ssize(more[rank]));
}

// [world]: all pools and states, those of the drafter included.
inline std::vector<Bytes> caches_of(Executor& executor) {
  std::vector<Bytes> caches;
  for (const LayerCache& layer : executor.layers()) {
    for (const TensorView* view : {&layer.window.pages, &layer.entries.pages, &layer.keys.pages,
                                   &layer.state.slots, &layer.index_state.slots})
      append(caches, on_every_rank(executor, *view));
  }
  return caches;
}

}  // namespace dsv4::test
