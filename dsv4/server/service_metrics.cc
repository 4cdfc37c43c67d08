// The gauges and counters that are read when /metrics is asked (docs/spec/serving.md 8).

#include "dsv4/server/server_log.h"
#include "dsv4/server/service.h"

namespace dsv4 {
namespace {

// "window", "ratio4", "ratio128": by what an entry of the pages stands for.
std::string name_of(const EngineStats::PageGroup& group) {
  return group.window ? "window" : fmt::format("ratio{}", group.tokens_per_entry);
}

}  // namespace

void Service::set_memory_metrics(const EngineThread::State& state) {
  const EngineStats& stats = state.stats;
  for (const EngineStats::PageGroup& group : stats.groups) {
    const auto set = [&](const char* use, int64_t pages) {
      metrics_.set("dsv4_cache_pages", static_cast<double>(pages),
                   fmt::format("group=\"{}\",use=\"{}\"", name_of(group), use));
    };
    set("running", group.used);
    set("stored", group.stored);
    set("free", group.free);
  }
  metrics_.set("dsv4_state_slots", static_cast<double>(stats.state_slots_used), "use=\"running\"");
  metrics_.set("dsv4_state_slots", static_cast<double>(stats.state_slots - stats.state_slots_used),
               "use=\"free\"");
  const MemoryUse& memory = state.device_memory;
  metrics_.set("dsv4_gpu_memory_bytes", static_cast<double>(memory.total_bytes - memory.free_bytes),
               "use=\"taken\"");
  metrics_.set("dsv4_gpu_memory_bytes", static_cast<double>(memory.free_bytes), "use=\"free\"");
}

void Service::set_cache_metrics(const EngineStats& stats) {
  if (stats.block_tokens > 0) {
    metrics_.set("dsv4_cache_config_info", 1,
                 fmt::format("block_size=\"{}\",num_gpu_blocks=\"{}\",kv_cache_size_tokens=\"{}\","
                             "enable_prefix_caching=\"{}\"",
                             stats.block_tokens, stats.cache_tokens / stats.block_tokens,
                             stats.cache_tokens, stats.checkpoint_limit > 0 ? "True" : "False"));
  }
  const auto set = [&](const char* name, int64_t engine, int64_t ram, int64_t disk) {
    if (engine >= 0) metrics_.set(name, static_cast<double>(engine), "tier=\"engine\"");
    metrics_.set(name, static_cast<double>(ram), "tier=\"ram\"");
    metrics_.set(name, static_cast<double>(disk), "tier=\"disk\"");
  };
  const UnitStoreStats& units = stats.units;
  set("dsv4_prompt_tokens_cached_total", stats.cached_tokens - stats.ram_tokens - stats.disk_tokens,
      stats.ram_tokens, stats.disk_tokens);
  set("dsv4_cache_entries", stats.checkpoints, units.ram_units, units.disk_units);
  set("dsv4_cache_bytes", -1, units.ram_bytes, units.disk_bytes);
  set("dsv4_cache_evictions_total", -1, units.ram_evictions, units.disk_evictions);
  const auto one = [&](const char* name, int64_t value) {
    metrics_.set(name, static_cast<double>(value));
  };
  one("dsv4_prefix_queries_total", stats.cached_tokens + stats.prefill_tokens);
  one("dsv4_cache_bad_files_total", units.bad_files);
  one("dsv4_cache_errors_total", units.io_errors);
  one("dsv4_cache_loads_total", units.read);
  one("dsv4_cache_recomputed_total", units.recomputed);
}

void Service::set_speculation_metrics(const SpeculationStats& stats) {
  const auto set = [&](const char* name, int64_t value, const std::string& labels = {}) {
    metrics_.set(name, static_cast<double>(value), labels);
  };
  set("dsv4_spec_k", stats.chosen);
  set("dsv4_spec_rounds_total", stats.rounds);
  set("dsv4_spec_tokens_total", stats.tokens);
  for (size_t s = 0; s < kNumDraftSources; ++s) {
    const std::string source =
        fmt::format("source=\"{}\"", dsv4::name(static_cast<DraftSource>(s)));
    set("dsv4_spec_drafted_total", stats.counts.drafted[s], source);
    set("dsv4_spec_accepted_total", stats.counts.accepted[s], source);
  }
  for (size_t i = 0; i < stats.accepted_at.size(); ++i)
    set("dsv4_spec_accepted_position_total", stats.accepted_at[i],
        fmt::format("position=\"{}\"", i + 1));
  for (size_t n = 0; n < stats.round_tokens.size(); ++n)
    set("dsv4_spec_round_tokens_total", stats.round_tokens[n], fmt::format("tokens=\"{}\"", n + 1));
  metrics_.set("dsv4_spec_draft_seconds_total", stats.draft_seconds);
}

// No layers where all experts are in GPU memory.
void Service::set_expert_metrics(const ExpertStats& stats) {
  if (!stats.any()) return;
  const auto set = [&](const char* name, int64_t value, const std::string& labels = {}) {
    metrics_.set(name, static_cast<double>(value), labels);
  };
  for (size_t l = 0; l < stats.layers.size(); ++l) {
    const std::string layer = fmt::format("layer=\"{}\"", l);
    set("dsv4_expert_hits_total", stats.layers[l].hits, layer);
    set("dsv4_expert_misses_total", stats.layers[l].misses(), layer);
  }
  const ExpertCounts sum = stats.sum();
  set("dsv4_expert_link_bytes_total", sum.moved_bytes, "path=\"fetch\"");
  set("dsv4_expert_link_bytes_total", sum.home_bytes, "path=\"home\"");
  set("dsv4_expert_link_bytes_total", stats.prompt_bytes, "path=\"prompt\"");
  set("dsv4_expert_prompt_steps_total", stats.prompt_steps);
  set("dsv4_expert_bad_ids_total", sum.impossible);
}

// A rank that waits little is the one that the others wait for.
void Service::set_rank_metrics(const std::vector<RankStats>& ranks) {
  for (const RankStats& stats : ranks) {
    const std::string rank = fmt::format("rank=\"{}\"", stats.rank);
    const auto set = [&](const char* name, auto value, const char* use = nullptr) {
      metrics_.set(name, static_cast<double>(value),
                   use == nullptr ? rank : fmt::format("{},use=\"{}\"", rank, use));
    };
    set("dsv4_rank_steps_total", stats.steps);
    set("dsv4_rank_step_seconds_total", stats.step_seconds);
    set("dsv4_rank_wait_seconds_total", stats.wait_seconds);
    set("dsv4_rank_received_bytes_total", stats.received_bytes);
    set("dsv4_rank_memory_bytes", stats.weight_bytes, "weights");
    set("dsv4_rank_memory_bytes", stats.cache_bytes, "cache");
    set("dsv4_rank_memory_bytes", stats.workspace_bytes, "workspace");
    const MemoryUse& memory = stats.device_memory;
    if (memory.total_bytes == 0) continue;
    set("dsv4_rank_gpu_memory_bytes", memory.total_bytes - memory.free_bytes, "taken");
    set("dsv4_rank_gpu_memory_bytes", memory.free_bytes, "free");
  }
}

Service::Response Service::metrics(const RoutedRequest&) {
  const EngineThread::State state = engine_->state();
  const HttpCounters& http = http_->counters();
  const auto set = [&](const char* name, auto value) {
    metrics_.set(name, static_cast<double>(value));
  };
  set("dsv4_requests_running", state.running);
  set("dsv4_requests_waiting", state.queued);
  const EngineStats& stats = state.stats;
  set("dsv4_kv_usage_ratio", static_cast<double>(stats.pages_used) /
                                 static_cast<double>(std::max<int64_t>(stats.pages, 1)));
  set("dsv4_queued_prompt_tokens", state.queued_tokens);
  set("dsv4_connections", http.connections);
  set("dsv4_connections_accepted_total", http.accepted);
  set("dsv4_connections_refused_total", http.refused);
  set("dsv4_timeouts_total", http.timeouts);
  set("dsv4_log_lines_lost_total", log_lines_lost());
  set("dsv4_ready", unready_reason().empty() && !overloaded());
  set("dsv4_overloaded", overloaded());
  set("dsv4_bodies_waiting", bodies_->size());
  set("dsv4_preemptions_total", state.stats.preemptions);
  set("dsv4_prefix_hits_total", state.stats.cached_tokens);
  set_cache_metrics(stats);
  set_memory_metrics(state);
  set_speculation_metrics(stats.speculation);
  set_expert_metrics(state.experts);
  set_rank_metrics(state.ranks);
  set("dsv4_engine_steps_total", state.stats.steps);
  set("dsv4_engine_prefill_tokens_total", state.stats.prefill_tokens);
  set("dsv4_engine_decode_tokens_total", state.stats.decode_tokens);
  set("dsv4_engine_prefill_seconds_total", state.stats.prefill_seconds);
  set("dsv4_engine_decode_seconds_total", state.stats.decode_seconds);
  set("dsv4_grammar_masks_total", state.stats.masks);
  set("dsv4_grammar_mask_seconds_total", state.stats.mask_seconds);
  if (model_) {
    const Grammars::Size grammars = model_->grammars.size();
    set("dsv4_grammars", grammars.count);
    set("dsv4_grammar_bytes", grammars.bytes);
    set("dsv4_grammar_compiles_total", grammars.compiles);
    set("dsv4_grammar_compile_seconds_total", grammars.compile_seconds);
    metrics_.set("dsv4_replay_lookups_total", static_cast<double>(model_->replay.hits()),
                 "result=\"hit\"");
    metrics_.set("dsv4_replay_lookups_total", static_cast<double>(model_->replay.misses()),
                 "result=\"miss\"");
    set("dsv4_replay_turns", model_->replay.turns());
    set("dsv4_replay_bytes", model_->replay.bytes());
  }
  if (options_.more_metrics) options_.more_metrics(metrics_);
  return HttpResponse{
      .content_type = "text/plain; version=0.0.4; charset=utf-8",
      .body = metrics_.text(options_.metrics_alias, model_ ? model_->names.front() : "")};
}

}  // namespace dsv4
