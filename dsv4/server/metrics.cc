#include "dsv4/server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

namespace dsv4 {
namespace {

enum class Kind { kCounter, kGauge, kHistogram };

struct Metric {
  std::string_view name;
  Kind kind;
  std::string_view help;
  std::string_view alias;  // empty: none
};

// vLLM's counter of requests has good ones only, and its own word for how they ended.
std::string labels_of_alias(std::string_view name, std::string labels) {
  constexpr std::string_view kFinish = "finish=";
  if (name != "dsv4_requests_total" || !labels.starts_with(kFinish)) return labels;
  return "finished_reason=" + labels.substr(kFinish.size());
}

// Every metric; add() and set() of another name are errors of this program.
constexpr Metric kTable[] = {
    {"dsv4_requests_running", Kind::kGauge, "Requests in the engine", "vllm:num_requests_running"},
    {"dsv4_requests_waiting", Kind::kGauge, "Requests in the queue", "vllm:num_requests_waiting"},
    {"dsv4_kv_usage_ratio", Kind::kGauge, "Pages of the cache in use", "vllm:kv_cache_usage_perc"},
    {"dsv4_cache_pages", Kind::kGauge,
     "Pages of the cache, by the entries they hold and who holds them", ""},
    {"dsv4_state_slots", Kind::kGauge, "Places of running sequences", ""},
    {"dsv4_gpu_memory_bytes", Kind::kGauge, "Memory of the GPU, of all programs on it", ""},
    {"dsv4_cache_config_info", Kind::kGauge,
     "Always 1; the labels are the size of the cache in blocks, which checkpoints end",
     "vllm:cache_config_info"},
    {"dsv4_queued_prompt_tokens", Kind::kGauge, "Prompt tokens in the queue", ""},
    {"dsv4_connections", Kind::kGauge, "Open connections", ""},
    {"dsv4_ready", Kind::kGauge, "1 while /ready answers 200", ""},
    {"dsv4_overloaded", Kind::kGauge, "1 while new requests are refused or wait long", ""},
    {"dsv4_bodies_waiting", Kind::kGauge, "Bodies of requests that wait for a worker", ""},
    {"dsv4_prompt_tokens_total", Kind::kCounter, "Tokens of prompts", "vllm:prompt_tokens_total"},
    {"dsv4_generated_tokens_total", Kind::kCounter, "Tokens of answers",
     "vllm:generation_tokens_total"},
    {"dsv4_requests_total", Kind::kCounter, "Requests by end", "vllm:request_success_total"},
    {"dsv4_preemptions_total", Kind::kCounter, "Requests whose pages were taken back",
     "vllm:num_preemptions_total"},
    {"dsv4_prefix_hits_total", Kind::kCounter, "Prompt tokens that stored prefixes spared",
     "vllm:prefix_cache_hits_total"},
    {"dsv4_prefix_queries_total", Kind::kCounter, "Prompt tokens that prefixes were looked up for",
     "vllm:prefix_cache_queries_total"},
    {"dsv4_prompt_tokens_cached_total", Kind::kCounter,
     "Prompt tokens that stored prefixes spared, by tier", "vllm:prompt_tokens_cached_total"},
    {"dsv4_cache_entries", Kind::kGauge, "Checkpoints and units of the prefix cache", ""},
    {"dsv4_cache_bytes", Kind::kGauge, "Bytes of units", ""},
    {"dsv4_cache_evictions_total", Kind::kCounter, "Units that left a tier", ""},
    {"dsv4_cache_bad_files_total", Kind::kCounter, "Files of units that were refused", ""},
    {"dsv4_cache_errors_total", Kind::kCounter, "Errors of the disk tier's file system", ""},
    {"dsv4_cache_loads_total", Kind::kCounter, "Units read from the disk", ""},
    {"dsv4_cache_recomputed_total", Kind::kCounter,
     "Lookups that left a prefix on the disk because computing was faster", ""},
    {"dsv4_engine_steps_total", Kind::kCounter, "Steps of the engine", ""},
    {"dsv4_engine_prefill_tokens_total", Kind::kCounter,
     "Tokens in steps with prompts, recomputed ones included", ""},
    {"dsv4_engine_decode_tokens_total", Kind::kCounter, "Tokens of answers in the other steps", ""},
    {"dsv4_engine_prefill_seconds_total", Kind::kCounter, "Time of steps with prompts", ""},
    {"dsv4_engine_decode_seconds_total", Kind::kCounter, "Time of the other steps", ""},
    {"dsv4_spec_k", Kind::kGauge,
     "Drafts of a request at most, in the latest step that could have some", ""},
    {"dsv4_spec_rounds_total", Kind::kCounter, "Times that a request had drafts in a step",
     "vllm:spec_decode_num_drafts_total"},
    {"dsv4_spec_tokens_total", Kind::kCounter, "Tokens that these gave", ""},
    {"dsv4_spec_drafted_total", Kind::kCounter, "Drafts, by where they came from", ""},
    {"dsv4_spec_accepted_total", Kind::kCounter, "Drafts that held, by where they came from", ""},
    {"dsv4_spec_accepted_position_total", Kind::kCounter,
     "Drafts that held, by their place in the step", ""},
    {"dsv4_spec_round_tokens_total", Kind::kCounter,
     "Times that a request had drafts in a step, by the tokens that it got", ""},
    {"dsv4_spec_draft_seconds_total", Kind::kCounter, "Time of choosing drafts", ""},
    {"dsv4_expert_hits_total", Kind::kCounter,
     "Experts that decode steps chose and found in GPU memory, by layer", ""},
    {"dsv4_expert_misses_total", Kind::kCounter,
     "Experts that decode steps chose and found in host memory only, by layer", ""},
    {"dsv4_expert_link_bytes_total", Kind::kCounter,
     "Bytes of experts from host memory: fetched by decode steps, read at home by them, or "
     "streamed past prompts",
     ""},
    {"dsv4_expert_prompt_steps_total", Kind::kCounter, "Steps that streamed experts past prompts",
     ""},
    {"dsv4_expert_bad_ids_total", Kind::kCounter,
     "Layers of decode steps with choices that are no experts", ""},
    {"dsv4_rank_steps_total", Kind::kCounter, "Steps of each rank", ""},
    {"dsv4_rank_step_seconds_total", Kind::kCounter,
     "Time of each rank's thread in steps, which a GPU's enqueues, and drafts", ""},
    {"dsv4_rank_wait_seconds_total", Kind::kCounter,
     "Time of each rank in exchanges, mostly waiting for others", ""},
    {"dsv4_rank_received_bytes_total", Kind::kCounter,
     "Bytes of other ranks' values that each rank received", ""},
    {"dsv4_rank_memory_bytes", Kind::kGauge, "Memory of each rank, by what it holds", ""},
    {"dsv4_rank_gpu_memory_bytes", Kind::kGauge, "Memory of each rank's GPU, of all programs on it",
     ""},
    {"dsv4_rejections_total", Kind::kCounter, "Requests refused, by reason", ""},
    {"dsv4_disconnects_total", Kind::kCounter, "Clients that left before the end", ""},
    {"dsv4_connections_accepted_total", Kind::kCounter, "Connections", ""},
    {"dsv4_connections_refused_total", Kind::kCounter, "Connections over a limit", ""},
    {"dsv4_log_lines_lost_total", Kind::kCounter, "Lines that the log did not take at once", ""},
    {"dsv4_timeouts_total", Kind::kCounter, "Connections closed for being slow", ""},
    {"dsv4_tool_parse_total", Kind::kCounter, "Calls by how they were parsed", ""},
    {"dsv4_trace_spans_total", Kind::kCounter, "Spans of traces that a collector took", ""},
    {"dsv4_trace_spans_dropped_total", Kind::kCounter,
     "Spans that found the queue full, or that no collector took", ""},
    {"dsv4_kv_events_total", Kind::kCounter, "Events of the cache that were published", ""},
    {"dsv4_kv_event_batches_total", Kind::kCounter, "Batches of them", ""},
    {"dsv4_kv_events_lost_total", Kind::kCounter, "Events that came faster than they were sent",
     ""},
    {"dsv4_kv_event_replays_total", Kind::kCounter, "Requests for batches again", ""},
    {"dsv4_grammars", Kind::kGauge, "Compiled grammars that are kept", ""},
    {"dsv4_grammar_bytes", Kind::kGauge, "Bytes of their states and masks, about", ""},
    {"dsv4_grammar_compiles_total", Kind::kCounter, "Grammars compiled", ""},
    {"dsv4_grammar_compile_seconds_total", Kind::kCounter, "Time of compiling them", ""},
    {"dsv4_grammar_masks_total", Kind::kCounter, "Masks of tokens that were made", ""},
    {"dsv4_grammar_mask_seconds_total", Kind::kCounter, "Time of making them", ""},
    {"dsv4_replay_turns", Kind::kGauge, "Turns in the replay map", ""},
    {"dsv4_replay_lookups_total", Kind::kCounter, "Turns of histories, by whether it had them", ""},
    {"dsv4_replay_bytes", Kind::kGauge, "Bytes of the replay map", ""},
    {"dsv4_ttft_seconds", Kind::kHistogram, "Time to the first token",
     "vllm:time_to_first_token_seconds"},
    {"dsv4_itl_seconds", Kind::kHistogram, "Time between tokens",
     "vllm:inter_token_latency_seconds"},
    {"dsv4_batch_interval_seconds", Kind::kHistogram,
     "Time between steps that gave tokens to an answer", ""},
    {"dsv4_e2e_seconds", Kind::kHistogram, "Time of a request", "vllm:e2e_request_latency_seconds"},
    {"dsv4_queue_seconds", Kind::kHistogram, "Time in the queue",
     "vllm:request_queue_time_seconds"},
    {"dsv4_prefill_seconds", Kind::kHistogram, "Time from the queue to the first token",
     "vllm:request_prefill_time_seconds"},
};

constexpr double kBounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                              1,     2.5,    5,     10,   25,    50,   100, 250};

const char* type_of(Kind kind) {
  return kind == Kind::kCounter ? "counter" : kind == Kind::kGauge ? "gauge" : "histogram";
}

std::string escaped(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string with_braces(const std::string& labels) {
  return labels.empty() ? "" : "{" + labels + "}";
}

}  // namespace

void Metrics::add(std::string_view name, double value, std::string_view labels) {
  values_[std::string(name)][std::string(labels)] += value;
}

void Metrics::set(std::string_view name, double value, std::string_view labels) {
  values_[std::string(name)][std::string(labels)] = value;
}

void Metrics::observe(std::string_view name, double seconds) {
  Histogram& histogram = histograms_[std::string(name)];
  histogram.counts.resize(std::size(kBounds) + 1);
  const auto bound = std::lower_bound(std::begin(kBounds), std::end(kBounds), seconds);
  ++histogram.counts[static_cast<size_t>(bound - std::begin(kBounds))];
  histogram.sum += seconds;
}

std::string Metrics::text(bool aliases, std::string_view model) const {
  std::string out;
  const auto write = [&](const Metric& metric, std::string_view name, const std::string& common) {
    out +=
        fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, metric.help, name, type_of(metric.kind));
    const auto join = [&](const std::string& labels) {
      return common.empty() || labels.empty() ? common + labels : common + "," + labels;
    };
    if (metric.kind != Kind::kHistogram) {
      const auto found = values_.find(metric.name);
      if (found == values_.end())
        return void(out += fmt::format("{}{} 0\n", name, with_braces(common)));
      for (const auto& [labels, value] : found->second) {
        const bool alias = name != metric.name;
        if (alias && labels.find("code=\"") != labels.npos &&
            labels.find("code=\"200\"") == labels.npos)
          continue;
        const std::string own = alias ? labels_of_alias(metric.name, labels) : labels;
        out += fmt::format("{}{} {}\n", name, with_braces(join(own)), value);
      }
      return;
    }
    const auto found = histograms_.find(metric.name);
    static const Histogram kEmpty{std::vector<int64_t>(std::size(kBounds) + 1), 0};
    const Histogram& histogram = found == histograms_.end() ? kEmpty : found->second;
    int64_t total = 0;
    for (size_t i = 0; i < histogram.counts.size(); ++i) {
      total += histogram.counts[i];
      const std::string bound =
          i < std::size(kBounds) ? fmt::format("le=\"{}\"", kBounds[i]) : "le=\"+Inf\"";
      out += fmt::format("{}_bucket{{{}}} {}\n", name, join(bound), total);
    }
    out += fmt::format("{}_sum{} {}\n{}_count{} {}\n", name, with_braces(common), histogram.sum,
                       name, with_braces(common), total);
  };
  const std::string model_label = fmt::format("model_name=\"{}\"", escaped(model));
  for (const Metric& metric : kTable) {
    write(metric, metric.name, "");
    if (aliases && !metric.alias.empty()) write(metric, metric.alias, model_label);
  }
  return out;
}

}  // namespace dsv4
