// Routes without a generation.

#include "dsv4/base/error.h"
#include "dsv4/chat/encoder_level.h"
#include "dsv4/chat/request_error.h"
#include "dsv4/server/json_text.h"
#include "dsv4/server/numbers.h"
#include "dsv4/server/page.h"
#include "dsv4/server/prepare.h"
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

}  // namespace dsv4
