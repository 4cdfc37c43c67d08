#include "dsv4/engine/engine.h"
#include "dsv4/engine/expert_store.h"

namespace dsv4 {

EngineStats Engine::stats() const {
  EngineStats stats = stats_;
  const PageTables& tables = executor_.cache();
  for (size_t g = 0; g < tables.groups().size(); ++g) {
    const CacheGroup& group = tables.groups()[g];
    const int64_t free = tables.free_pages(static_cast<int>(g)),
                  stored = tables.idle_pages(static_cast<int>(g)),
                  used = group.num_pages - free - stored;
    stats.pages += group.num_pages;
    stats.pages_used += used;
    stats.groups.push_back({.tokens_per_entry = group.tokens_per_entry,
                            .window = group.keep_tokens > 0,
                            .used = used,
                            .stored = stored,
                            .free = free});
  }
  stats.cache_tokens = options_.cache_tokens > 0 ? options_.cache_tokens
                                                 : options_.max_tokens * options_.max_sequences;
  stats.block_tokens = checkpoint_step(tables.groups());
  stats.state_slots = options_.max_sequences;
  stats.state_slots_used = tables.num_open();
  if (const PrefixCache* prefixes = executor_.prefixes()) stats.checkpoints = prefixes->size();
  stats.speculation = speculation_.stats();
  stats.checkpoint_limit = options_.prefix_checkpoints;
  if (const UnitStore* units = executor_.units()) stats.units = units->stats();
  return stats;
}

MemoryUse Engine::device_memory() const {
  return dsv4::device_memory(model_.device());
}

ExpertStats Engine::expert_stats() const {
  const ExpertStore* const store = model_.expert_store();
  return store == nullptr ? ExpertStats{} : store->read_stats();
}

}  // namespace dsv4
