// The table of routes, and the handlers of those without a generation.

#include <fmt/chrono.h>

#include "dsv4/base/error.h"
#include "dsv4/chat/chat_message.h"
#include "dsv4/chat/encoder_level.h"
#include "dsv4/chat/request_error.h"
#include "dsv4/server/json_text.h"
#include "dsv4/server/numbers.h"
#include "dsv4/server/ollama_info.h"
#include "dsv4/server/page.h"
#include "dsv4/server/prepare.h"
#include "dsv4/server/server_log.h"
#include "dsv4/server/service.h"
#include "dsv4/text/utf8.h"

namespace dsv4 {
namespace {

// The form of OpenAI's API and of Anthropic's in one object.
Json model_json(const std::string& id, const ServedModel& model) {
  return {{"id", id},
          {"object", "model"},
          {"created", model.created},
          {"created_at", utc_text(model.created)},
          {"owned_by", "dsv4"},
          {"type", "model"},
          {"display_name", id},
          {"capabilities", nullptr},
          {"lifecycle", "active"},
          {"deprecated_at", nullptr},
          {"line", nullptr},
          {"max_input_tokens", model.limits.context},
          {"max_tokens", model.limits.context},
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
    require_room(prompt.string().size(), model, prompt.path());
    if (field.at("parse_special").boolean(true)) {
      ids = model.tokenizer->encode(prompt.string());
    } else {
      model.text.encode(prompt.string(), ids);
    }
    if (field.at("add_special_tokens").boolean(false))
      ids.insert(ids.begin(), model.markers.require(Marker::kBos));
  }
  if (static_cast<int64_t>(ids.size()) > model.limits.context) {
    throw RequestError("context_length_exceeded", "prompt",
                       fmt::format("this model's context is {} tokens; the text has {}",
                                   model.limits.context, ids.size()));
  }
  return text_of(
      Json{{"tokens", ids}, {"count", ids.size()}, {"max_model_len", model.limits.context}});
}

std::string detokenize(const std::string& text, const ServedModel& model, const std::string&) {
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

// The prompts of a request as it would run, in the form of vLLM's renderer.
Json rendered_requests(Api api, const std::string& text, const ServedModel& model,
                       const std::string& seal_key) {
  const Prepared request = prepare(api, text, model, seal_key);
  const SamplingParams& sampling = request.settings.sampling;
  Json params = {{"n", request.settings.n},
                 {"max_tokens", request.max_tokens},
                 {"temperature", sampling.temperature},
                 {"top_p", sampling.top_p},
                 {"top_k", sampling.top_k},
                 {"min_p", sampling.min_p},
                 {"stop", request.settings.stops}};
  if (request.settings.has_seed) params["seed"] = sampling.seed;
  Json list = Json::array();
  for (const std::vector<int32_t>& ids : request.prompts) {
    list.push_back({{"request_id", random_id(api == Api::kChat ? "chatcmpl-" : "cmpl-")},
                    {"model", request.answer.model},
                    {"prompt", utf8_lossy(model.tokenizer->decode(ids))},
                    {"token_ids", ids},
                    {"sampling_params", params},
                    {"stream", request.settings.stream}});
  }
  return list;
}

std::string rendered_chat(const std::string& text, const ServedModel& model,
                          const std::string& seal_key) {
  return text_of(rendered_requests(Api::kChat, text, model, seal_key)[0]);
}

std::string rendered_completion(const std::string& text, const ServedModel& model,
                                const std::string& seal_key) {
  return text_of(rendered_requests(Api::kCompletions, text, model, seal_key));
}

std::string counted(const std::string& text, const ServedModel& model,
                    const std::string& seal_key) {
  const JsonValue body = parse_json(text, "the body");
  Field(&body, "").object();
  model_name(body, model);
  return text_of(Json{{"input_tokens", prompt_ids(Api::kMessages, body, model, seal_key).size()}});
}

std::string counted_response(const std::string& text, const ServedModel& model,
                             const std::string& seal_key) {
  const JsonValue body = parse_json(text, "the body");
  Field(&body, "").object();
  model_name(body, model);
  return text_of(Json{{"object", "response.input_tokens"},
                      {"input_tokens", prompt_ids(Api::kResponses, body, model, seal_key).size()}});
}

using Needs = Route::Needs;

constexpr Needs kClient{.model = true};
constexpr Needs kOperator{.key = Route::Key::kAdmin, .port = Route::Port::kOperators};
constexpr Needs kProbe{.key = Route::Key::kNone, .port = Route::Port::kBoth};
constexpr Needs kBuild{.port = Route::Port::kBoth};
constexpr Needs kScrape{.port = Route::Port::kOperators};
constexpr Needs kPage{.key = Route::Key::kNone};

HttpResponse json_response(const Json& json) {
  return {.body = text_of(json)};
}

}  // namespace

std::span<const Route> Service::routes() {
  static constexpr Route kRoutes[] = {
      {"POST", "/chat/completions", &Service::generate, kClient, Api::kChat},
      {"POST", "/completions", &Service::generate, kClient, Api::kCompletions},
      {"POST", "/chat/completions/render", &Service::answer_from_body<rendered_chat>, kClient},
      {"POST", "/completions/render", &Service::answer_from_body<rendered_completion>, kClient,
       Api::kCompletions},
      {"POST", "/responses", &Service::generate, kClient, Api::kResponses},
      {"POST", "/messages", &Service::generate, kClient, Api::kMessages},
      {"POST", "/messages/count_tokens", &Service::answer_from_body<counted>, kClient,
       Api::kMessages},
      {"POST", "/responses/input_tokens", &Service::answer_from_body<counted_response>, kClient,
       Api::kResponses},
      {"GET", "/models", &Service::models, kClient},
      {"GET", "/models/", &Service::models, kClient},
      {"GET", "/models/{}", &Service::model, kClient},  // a name may hold slashes, as owner/name
      {"POST", "/dsv4/tokenize", &Service::answer_from_body<tokenize>, kClient},
      {"POST", "/tokenize", &Service::answer_from_body<tokenize>, kClient},
      {"POST", "/dsv4/detokenize", &Service::answer_from_body<detokenize>, kClient},
      {"POST", "/detokenize", &Service::answer_from_body<detokenize>, kClient},
      {"POST", "/dsv4/render", &Service::answer_from_body<rendered>, kClient},
      {"GET", "/dsv4/requests", &Service::requests, kOperator},
      {"POST", "/dsv4/requests/{}/cancel", &Service::cancel, kOperator},
      {"GET", "/dsv4/cache", &Service::cache, kOperator},
      {"POST", "/dsv4/cache/drop", &Service::drop_cache, kOperator},
      {"GET", "/health", &Service::health, kProbe},
      {"GET", "/ready", &Service::ready, kProbe},
      {"GET", "/version", &Service::version, kBuild},
      {"GET", "/metrics", &Service::metrics, kScrape},
      {"POST", "/api/chat", &Service::generate, kClient, Api::kOllamaChat},
      {"POST", "/api/generate", &Service::generate, kClient, Api::kOllamaGenerate},
      {"GET", "/api/tags", &Service::ollama_models, kClient, Api::kOllamaChat},
      {"GET", "/api/ps", &Service::ollama_processes, kClient, Api::kOllamaChat},
      {"POST", "/api/show", &Service::answer_from_body<ollama_show>, kClient, Api::kOllamaChat},
      {"GET", "/api/version", &Service::ollama_version, kBuild, Api::kOllamaChat},
      {"", "/api/{}", &Service::not_here, {}, Api::kOllamaChat},  // pull, delete, embed, ...
      {"GET", "/", &Service::page, kPage},
      {"GET", "/page/{}", &Service::page, kPage},
  };
  return kRoutes;
}

void Service::handle(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request();
  FoundRoute found = *find_route(routes(), request.path);
  const Api api = found.route->api;
  try {
    auto response = (this->*found.route->handler)({exchange, api, std::move(found.argument)});
    if (response) exchange->respond(answer(request, std::move(*response)));
  } catch (const RequestError& error) {
    exchange->respond(error_response(request, api, api_error(error)));
  }
}

Service::Response Service::models(const RoutedRequest&) {
  Json list = Json::array();
  for (const std::string& name : model_->names) list.push_back(model_json(name, *model_));
  return json_response({{"object", "list"},
                        {"data", std::move(list)},
                        {"has_more", false},
                        {"first_id", model_->names.front()},
                        {"last_id", model_->names.back()}});
}

Service::Response Service::model(const RoutedRequest& request) {
  for (const std::string& name : model_->names) {
    if (name == request.argument) return json_response(model_json(name, *model_));
  }
  throw RequestError("model_not_found", "model",
                     fmt::format("no model '{}' here", one_line(request.argument)), 404);
}

Service::Response Service::health(const RoutedRequest&) {
  return json_response({{"status", "ok"}});
}

Service::Response Service::version(const RoutedRequest&) {
  return json_response({{"version", options_.version}});
}

Service::Response Service::page(const RoutedRequest& request) {
  const std::string name = request.argument.empty() ? "page.html" : request.argument;
  if (auto response = page_response(name, request.exchange->request())) return response;
  throw RequestError("not_found", "", fmt::format("the page has no file '{}'", one_line(name)),
                     404);
}

Service::Response Service::ollama_models(const RoutedRequest&) {
  return json_response(ollama_tags(*model_));
}

Service::Response Service::ollama_processes(const RoutedRequest&) {
  return json_response(ollama_running(*model_));
}

Service::Response Service::ollama_version(const RoutedRequest&) {
  return json_response({{"version", kOllamaVersion}, {"dsv4", options_.version}});
}

Service::Response Service::not_here(const RoutedRequest& request) {
  throw RequestError(
      "not_implemented", "",
      fmt::format("/api/{} is not there: this server has one model, which it neither pulls, "
                  "changes nor deletes, and no embeddings; there are /api/chat, generate, tags, "
                  "show, ps and version",
                  one_line(request.argument)),
      501);
}

Service::Response Service::drop_cache(const RoutedRequest&) {
  engine_->drop_prefixes();
  return json_response({{"dropped", true}});
}

Service::Response Service::cancel(const RoutedRequest& request) {
  const auto found = generations_.find(request.argument);
  if (found == generations_.end())
    throw RequestError("request_not_found", "", "no such request runs", 404);
  const std::shared_ptr<Generation> generation = found->second;
  generation->finish_early();
  remove(generation);
  return json_response({{"cancelled", true}});
}

// Answers with what `kWork` makes of the body on a worker thread.
template <Service::BodyWork kWork>
Service::Response Service::answer_from_body(const RoutedRequest& request) {
  constexpr size_t kMostBytes = size_t{16} << 20;
  if (request.exchange->request().body.size() > kMostBytes) {
    throw RequestError("body_too_large", "",
                       fmt::format("this route takes bodies of at most {} bytes", kMostBytes), 413);
  }
  const auto body = std::make_shared<std::string>();
  const auto error = std::make_shared<std::optional<ApiError>>();
  const auto compute = [this, exchange = request.exchange, body, error, model = model_] {
    try {
      *body = kWork(exchange->request().body, *model, seal_key_);
    } catch (const std::exception& exception) {
      *error = api_error(exception);
    }
  };
  on_worker(*texts_, request.exchange, request.api, compute,
            [this, exchange = request.exchange, api = request.api, body, error] {
              const HttpRequest& head = exchange->request();
              exchange->respond(*error ? error_response(head, api, **error)
                                       : answer(head, {.body = std::move(*body)}));
            });
  return std::nullopt;
}

void Service::on_worker(WorkQueue& queue, const std::shared_ptr<Exchange>& exchange, Api api,
                        std::function<void()> work, std::function<void()> done) {
  const HttpRequest& request = exchange->request();
  const size_t bytes = request.body.size();
  if (queue.post({client_of(request), bytes, std::move(work), std::move(done)}))
    return memory_.used(bytes);
  refuse(exchange, api, {429, "queue_full", "", "too many bodies wait to be read", 1});
}

// Empty while requests can be served.
std::string Service::unready_reason() const {
  const EngineThread::State state = engine_->state();
  if (state.broken) return "broken";
  if (draining_) return "draining";
  if (model_ == nullptr || !state.ready) return "loading";
  const double watchdog = std::chrono::duration<double>(options_.watchdog).count();
  return state.seconds_in_step > watchdog ? "stalled" : "";
}

// A request that came now would get 429, or would wait long before it is read.
bool Service::overloaded() const {
  constexpr double kLongWait = 5;  // seconds
  const EngineThread::State state = engine_->state();
  const bool busy = state.queued > 0 || state.running > 0;
  return bodies_->full() || bodies_->longest_wait() > kLongWait ||
         (busy &&
          (state.queued >= options_.max_queue || state.queued_tokens >= options_.max_queue_tokens));
}

Service::Response Service::ready(const RoutedRequest&) {
  std::string reason = unready_reason();
  if (reason.empty() && overloaded()) reason = "overloaded";
  HttpResponse response{.status = reason.empty() ? 200 : 503};
  const EngineThread::State state = engine_->state();
  response.body = text_of(Json{{"status", reason.empty() ? "ready" : reason},
                               {"running", state.running},
                               {"waiting", state.queued},
                               {"bodies_waiting", bodies_->size()}});
  if (!reason.empty()) response.headers.emplace_back("Retry-After", "2");
  return response;
}

Service::Response Service::requests(const RoutedRequest&) {
  Json list = Json::array();
  for (const auto& [id, generation] : generations_) {
    list.push_back({{"id", id},
                    {"client_request_id", generation->report().client_id},
                    {"api", name(generation->report().api)},
                    {"key", generation->report().key},
                    {"started", generation->started()}});
  }
  return json_response({{"data", std::move(list)}});
}

// Tokens of prompts: those that stored prefixes spared, and all of them.
Service::Response Service::cache(const RoutedRequest&) {
  const EngineStats stats = engine_->state().stats;
  const UnitStoreStats& units = stats.units;
  const int64_t queried = stats.cached_tokens + stats.prefill_tokens;
  return json_response(
      {{"hit_rate", queried == 0
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
