// Routes without a generation.

#include "dsv4/base/error.h"
#include "dsv4/chat/encoder_level.h"
#include "dsv4/chat/request_error.h"
#include "dsv4/server/json_text.h"
#include "dsv4/server/numbers.h"
#include "dsv4/server/page.h"
#include "dsv4/server/prepare.h"
#include "dsv4/server/server_log.h"
#include "dsv4/server/service.h"
#include "dsv4/text/utf8.h"

namespace dsv4 {
namespace {

Json model_json(const std::string& id, const ServedModel& model) {
  return {{"id", id},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "dsv4"},
          {"type", "model"},
          {"display_name", id},
          {"context_length", model.limits.context},
          {"max_model_len", model.limits.context}};
}

std::string tokenize(const std::string& text, const ServedModel& model,
                     const std::string& seal_key) {
  const JsonValue body = parse_json(text, "the body");
  const Field field(&body, "");
  std::vector<int32_t> ids;
  if (field.at("messages").present()) {
    ids = prompt_ids(Api::kChat, body, model, seal_key);
  } else {
    const Field prompt = field.at("prompt").present() ? field.at("prompt") : field.at("text");
    if (field.at("parse_special").boolean(true)) {
      ids = model.tokenizer->encode(prompt.string());
    } else {
      model.text.encode(prompt.string(), ids);
    }
    if (field.at("add_special_tokens").boolean(false))
      ids.insert(ids.begin(), model.markers.require(Marker::kBos));
  }
  return text_of(
      Json{{"tokens", ids}, {"count", ids.size()}, {"max_model_len", model.limits.context}});
}

std::string detokenize(const std::string& text, const ServedModel& model) {
  const JsonValue body = parse_json(text, "the body");
  const Field tokens = Field(&body, "").at("tokens");
  std::vector<int32_t> ids;
  for (size_t i = 0; i < tokens.list(); ++i)
    ids.push_back(static_cast<int32_t>(*read_integer(tokens.at(i), 0, model.text_ids() - 1)));
  const std::string out = utf8_lossy(model.tokenizer->decode(ids));
  return text_of(Json{{"prompt", out}, {"text", out}});
}

std::string rendered(const std::string& text, const ServedModel& model,
                     const std::string& seal_key) {
  const JsonValue body = parse_json(text, "the body");
  Field(&body, "").object();
  Prompt prompt;
  const std::vector<int32_t> ids = prompt_ids(Api::kChat, body, model, seal_key, &prompt);
  return text_of(Json{{"prompt", prompt.text()},
                      {"ids", ids},
                      {"special", prompt.marker_spans()},
                      {"stage", name(prompt.stage)}});
}

std::string counted(const std::string& text, const ServedModel& model,
                    const std::string& seal_key) {
  const JsonValue body = parse_json(text, "the body");
  Field(&body, "").object();
  model_name(body, model);
  return text_of(Json{{"input_tokens", prompt_ids(Api::kMessages, body, model, seal_key).size()}});
}

}  // namespace

void Service::handle(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request();
  const Route route = *find_route(request.path);
  const auto send = [&](std::string body, const char* type = "application/json") {
    exchange->respond(answer(request, {.content_type = type, .body = std::move(body)}));
  };
  const std::string& seal_key = seal_key_;
  switch (route.endpoint) {
    case Endpoint::kChat:
    case Endpoint::kCompletions:
    case Endpoint::kResponses:
    case Endpoint::kMessages:
      return generate(std::move(exchange), route.api);
    case Endpoint::kCountTokens:
      return answer_from_worker(std::move(exchange), route.api,
                                [&seal_key](const std::string& body, const ServedModel& model) {
                                  return counted(body, model, seal_key);
                                });
    case Endpoint::kTokenize:
      return answer_from_worker(std::move(exchange), route.api,
                                [&seal_key](const std::string& body, const ServedModel& model) {
                                  return tokenize(body, model, seal_key);
                                });
    case Endpoint::kDetokenize:
      return answer_from_worker(std::move(exchange), route.api, detokenize);
    case Endpoint::kRender:
      return answer_from_worker(std::move(exchange), route.api,
                                [&seal_key](const std::string& body, const ServedModel& model) {
                                  return rendered(body, model, seal_key);
                                });
    case Endpoint::kModels:
      return send(models_json());
    case Endpoint::kModel:
      for (const std::string& name : model_->names) {
        if (name == route.argument) return send(text_of(model_json(name, *model_)));
      }
      return exchange->respond(
          error_response(request, route.api,
                         {404, "model_not_found", "model",
                          fmt::format("no model '{}' here", one_line(route.argument)), 0}));
    case Endpoint::kHealth:
      return send(R"({"status":"ok"})");
    case Endpoint::kReady:
      return exchange->respond(answer(request, ready()));
    case Endpoint::kMetrics:
      return send(metrics_text(), "text/plain; version=0.0.4; charset=utf-8");
    case Endpoint::kVersion:
      return send(text_of(Json{{"version", options_.version}}));
    case Endpoint::kPage: {
      HttpResponse page{.content_type = "text/html; charset=utf-8", .body = std::string(kWebPage)};
      page.headers = {{"Content-Security-Policy", page_policy(kWebPage)},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"}};
      return exchange->respond(answer(request, std::move(page)));
    }
    case Endpoint::kRequests:
      return send(requests_json());
    case Endpoint::kCache:
      return send(cache_json());
    case Endpoint::kDropCache:
      engine_->drop_prefixes();
      return send(R"({"dropped":true})");
    case Endpoint::kCancel: {
      const auto found = generations_.find(route.argument);
      if (found == generations_.end()) {
        return exchange->respond(error_response(
            request, route.api, {404, "request_not_found", "", "no such request runs", 0}));
      }
      const std::shared_ptr<Generation> generation = found->second;
      generation->finish_early();
      remove(generation);
      return send(R"({"cancelled":true})");
    }
  }
}

// Answers with what `work` makes of the body on a worker thread.
void Service::answer_from_worker(std::shared_ptr<Exchange> exchange, Api api, Work work) {
  const auto body = std::make_shared<std::string>();
  const auto error = std::make_shared<std::optional<ApiError>>();
  const auto compute = [exchange, body, error, work = std::move(work), model = model_] {
    try {
      *body = work(exchange->request().body, *model);
    } catch (const std::exception& exception) {
      *error = api_error(exception);
    }
  };
  on_worker(exchange, api, compute, [this, exchange, api, body, error] {
    const HttpRequest& request = exchange->request();
    exchange->respond(*error ? error_response(request, api, **error)
                             : answer(request, {.body = std::move(*body)}));
  });
}

void Service::on_worker(const std::shared_ptr<Exchange>& exchange, Api api,
                        std::function<void()> work, std::function<void()> done) {
  if (preparing_ >= options_.max_preparing)
    return refuse(exchange, api, {429, "queue_full", "", "too many bodies wait to be read", 1});
  ++preparing_;
  http_->post_worker([this, work = std::move(work), done = std::move(done)] {
    work();
    http_->post_io([this, done] {
      --preparing_;
      done();
    });
  });
}

// Empty while requests can be served.
std::string Service::unready_reason() const {
  if (draining_) return "draining";
  const EngineThread::State state = engine_->state();
  if (state.broken) return "broken";
  if (model_ == nullptr || !state.ready) return "loading";
  const double watchdog = std::chrono::duration<double>(options_.watchdog).count();
  return state.seconds_in_step > watchdog ? "stalled" : "";
}

HttpResponse Service::ready() const {
  const std::string reason = unready_reason();
  HttpResponse response{.status = reason.empty() ? 200 : 503};
  response.body = text_of(Json{{"status", reason.empty() ? "ready" : reason}});
  if (!reason.empty()) response.headers.emplace_back("Retry-After", "2");
  return response;
}

std::string Service::models_json() const {
  Json list = Json::array();
  for (const std::string& name : model_->names) list.push_back(model_json(name, *model_));
  return text_of(Json{{"object", "list"},
                      {"data", std::move(list)},
                      {"has_more", false},
                      {"first_id", model_->names.front()},
                      {"last_id", model_->names.back()}});
}

std::string Service::requests_json() const {
  Json list = Json::array();
  for (const auto& [id, generation] : generations_) {
    list.push_back({{"id", id},
                    {"api", name(generation->report().api)},
                    {"key", generation->report().key},
                    {"started", generation->started()}});
  }
  return text_of(Json{{"data", std::move(list)}});
}

// Tokens of prompts: those that stored prefixes spared, and all of them.
std::string Service::cache_json() const {
  const EngineStats stats = engine_->state().stats;
  const UnitStoreStats& units = stats.units;
  const int64_t queried = stats.cached_tokens + stats.prefill_tokens;
  return text_of(Json{
      {"hit_rate", queried == 0
                       ? 0.0
                       : static_cast<double>(stats.cached_tokens) / static_cast<double>(queried)},
      {"cached_tokens", stats.cached_tokens},
      {"computed_tokens", stats.prefill_tokens},
      {"engine", {{"entries", stats.checkpoints}, {"limit", stats.checkpoint_limit}}},
      {"ram",
       {{"entries", units.ram_units},
        {"bytes", units.ram_bytes},
        {"cached_tokens", stats.ram_tokens},
        {"evictions", units.ram_evictions}}},
      {"disk",
       {{"entries", units.disk_units},
        {"bytes", units.disk_bytes},
        {"cached_tokens", stats.disk_tokens},
        {"evictions", units.disk_evictions},
        {"bad_files", units.bad_files},
        {"errors", units.io_errors},
        {"waiting_writes", units.queued_writes},
        {"paused", units.disk_paused}}}});
}

void Service::set_cache_metrics(const EngineStats& stats) {
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

std::string Service::metrics_text() {
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
  set("dsv4_ready", unready_reason().empty());
  set("dsv4_preemptions_total", state.stats.preemptions);
  set("dsv4_prefix_hits_total", state.stats.cached_tokens);
  set_cache_metrics(stats);
  set("dsv4_engine_steps_total", state.stats.steps);
  set("dsv4_engine_prefill_tokens_total", state.stats.prefill_tokens);
  set("dsv4_engine_decode_tokens_total", state.stats.decode_tokens);
  set("dsv4_engine_prefill_seconds_total", state.stats.prefill_seconds);
  set("dsv4_engine_decode_seconds_total", state.stats.decode_seconds);
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
  return metrics_.text(options_.metrics_alias, model_ ? model_->names.front() : "");
}

}  // namespace dsv4
