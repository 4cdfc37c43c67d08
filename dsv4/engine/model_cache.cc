#include "dsv4/engine/model_cache.h"

namespace dsv4 {

ModelCache::ModelCache(const ModelConfig& config, Numerics numerics, const CacheLimits& limits,
                       Memory& memory)
    : limits_(limits),
      layout_(plan_cache(config, numerics, limits)),
      tables_(layout_.plan.groups, limits.max_sequences, limits.max_rollback),
      pools_(layout_.plan, memory) {
  const std::vector<LayerSpec> schedule = layer_schedule(config);
  for (size_t l = 0; l < schedule.size(); ++l)
    layers_.push_back(view(config, schedule[l], layout_.layers[l]));
  model_layers_ = layers_.size();
  for (size_t l = model_layers_; l < layout_.layers.size(); ++l)
    layers_.push_back(view(config, LayerSpec{}, layout_.layers[l]));
  if (layout_.plan.streams_bytes == 0) return;
  const DType act = numerics == Numerics::kOfficial ? DType::kBF16 : DType::kF32;
  streams_ =
      TensorMeta::contiguous(act, {limits.max_sequences, config.hc_mult, config.hidden_size});
}

TensorView ModelCache::streams() const {
  return streams_.rank == 0 ? TensorView() : TensorView(streams_, pools_.streams().data);
}

LayerCache ModelCache::view(const ModelConfig& config, const LayerSpec& spec,
                            const CacheLayout::Layer& index) const {
  const auto page_entries = [&](int group) {
    return layout_.plan.groups[static_cast<size_t>(group)].page_entries;
  };
  const auto state = [&](int i) -> StatePool {
    return {pools_.state(i), layout_.plan.states[static_cast<size_t>(i)]};
  };
  LayerCache layer{
      .window = {pools_.pool(index.window), entry_layout(config), page_entries(kWindowGroup)}};
  if (index.entries >= 0) {
    layer.entries = {pools_.pool(index.entries), entry_layout(config), page_entries(spec.group)};
    layer.state = state(index.state);
  }
  if (index.keys >= 0) {
    layer.keys = {pools_.pool(index.keys), key_layout(config), page_entries(spec.group)};
    layer.index_state = state(index.index_state);
  }
  return layer;
}

int32_t ModelCache::block_row(int32_t slot) const {
  if (layers_.size() == model_layers_) return 0;
  const CachePlan& plan = layout_.plan;
  const CachePlan::Pool& pool = plan.pools[static_cast<size_t>(layout_.layers.back().window)];
  const CacheGroup& group = plan.groups[kWindowGroup];
  return static_cast<int32_t>((group.num_pages + slot * pool.own_pages) * group.page_entries);
}

SequenceRun ModelCache::run(SeqId seq, int64_t first, int64_t count) const {
  SequenceRun run{
      .first = first, .count = count, .position = tables_.length(seq), .slot = tables_.slot(seq)};
  run.block_row = block_row(run.slot);
  for (size_t g = 0; g < layout_.plan.groups.size(); ++g)
    run.pages.push_back(tables_.pages(seq, static_cast<int>(g)));
  return run;
}

}  // namespace dsv4
