// Life of the server, checks before a body is read, and generations. service_routes.cc has the
// table of routes and the other handlers, service_metrics.cc /metrics, service_reports.cc what is
// counted and logged of a request that is over.

#include "dsv4/server/service.h"

#include <algorithm>
#include <cmath>
#include <csignal>

#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/chat/chat_message.h"
#include "dsv4/chat/request_error.h"
#include "dsv4/server/known_fields.h"
#include "dsv4/server/request_headers.h"
#include "dsv4/server/seal.h"
#include "dsv4/server/server_log.h"
#include "dsv4/server/shares.h"

namespace dsv4 {
namespace {

constexpr int kExitBroken = 70;  // EX_SOFTWARE: a supervisor starts the server anew
constexpr std::chrono::seconds kLastWrites{2};
constexpr std::chrono::seconds kBroken{2};  // in which requests get 503
constexpr size_t kBodyWorkers = 2, kTextWorkers = 1;

// The client's name of the request, or a new one.
std::string name_of(const HttpRequest& head) {
  const std::string id = client_request_id(head);
  return id.empty() ? random_id("req_") : id;
}

ApiError wrong_origin(const HttpRequest& head) {
  return {403, "wrong_origin", "",
          fmt::format("pages of the origin '{}' are not allowed: a server answers them with "
                      "--cors-origin",
                      short_text(std::string(head.header("origin")))),
          0};
}

}  // namespace

Service::Service(const ServiceOptions& options, std::function<Loaded()> loader)
    : options_(options), seal_key_(random_bytes(kSealKeyBytes)) {
  read_keys();
  if (keys_.empty() && !is_loopback(options_.http.host)) {
    fail(ErrorCode::kBadInput,
         "--host {} without keys would serve everyone: give --api-key-file or DSV4_API_KEY",
         options_.http.host);
  }
  hosts_ = HostRule({.keys = !keys_.empty(),
                     .allowed_hosts = options_.allowed_hosts,
                     .cors_origins = options_.cors_origins});
  HttpServerOptions http = options_.http;
  http.workers = static_cast<int>(kBodyWorkers + kTextWorkers);
  http_ = std::make_unique<HttpServer>(http, *this);
  bodies_ = std::make_unique<WorkQueue>(*http_, kBodyWorkers, options_.max_preparing);
  texts_ = std::make_unique<WorkQueue>(*http_, kTextWorkers, options_.max_preparing);
  http_->on_tick([this] { on_tick(); });
  if (options_.handle_signals) http_->on_signal([this](int number) { on_signal(number); });
  engine_ = std::make_unique<EngineThread>(
      [this, loader = std::move(loader)] {
        Loaded loaded = loader();
        const std::lock_guard lock(model_mutex_);
        loaded_ = std::move(loaded.model);
        return std::move(loaded.engine);
      },
      [this](std::vector<EngineEvent> events) {
        http_->post_io([this, events = std::move(events)] { on_events(events); });
      });
}

Service::~Service() {
  engine_.reset();
  http_->join_workers();
  jobs_.clear();
  generations_.clear();
  http_.reset();
}

int Service::run() {
  http_->run();
  const EngineThread::State state = engine_->state();
  if (state.load_failed) fail(ErrorCode::kBadInput, state.error);
  return status_;
}

void Service::stop() {
  http_->stop();
}

void Service::drain() {
  http_->post_io([this] { begin_drain(); });
}

void Service::read_keys() {
  ApiKeys keys;
  if (!options_.api_key_file.empty()) {
    keys = ApiKeys::parse(read_text_file(options_.api_key_file, size_t{1} << 20),
                          options_.api_key_file);
    if (keys.empty()) fail(ErrorCode::kBadInput, "{}: no keys", options_.api_key_file);
    if (const std::string open = open_to_others(options_.api_key_file); !open.empty())
      log_line("key_file", {{"file", options_.api_key_file}, {"warning", open}});
  }
  for (const auto& [name, key] : options_.api_keys)
    if (!key.empty()) keys.add(name, key);
  keys_ = std::move(keys);
}

// ---- Before a body is read

const ApiKey* Service::key_of(const HttpRequest& head) const {
  const std::string_view key =
      presented_key(head.header("authorization"), head.header("x-api-key"));
  return key.empty() ? nullptr : keys_.find(key);
}

bool Service::is_open(const Route& route) const {
  return (options_.open_metrics && route.path == "/metrics") ||
         (options_.open_render && route.path.ends_with("completions/render"));
}

bool Service::authorized(const HttpRequest& head, const Route& route) const {
  // Who reaches the operators' port may read what is for every key.
  const bool operators = head.admin && route.needs.key == Route::Key::kAny;
  return route.needs.key == Route::Key::kNone || operators || is_open(route) || keys_.empty() ||
         key_of(head) != nullptr;
}

std::optional<ApiError> Service::refusal(const HttpRequest& head, const Route& route) const {
  if (!authorized(head, route)) {
    return ApiError{401, "invalid_api_key", "",
                    "missing or wrong API key: send Authorization: Bearer KEY or x-api-key", 0};
  }
  if (route.needs.key == Route::Key::kAdmin && !keys_.empty()) {
    if (const ApiKey* key = key_of(head); key == nullptr || !key->admin)
      return ApiError{403, "admin_only", "", "this route needs an admin key", 0};
  }
  if (route.method == "POST") {
    if (const std::string wrong = wrong_encoding(head); !wrong.empty())
      return ApiError{415, "unsupported_media_type", "", wrong, 0};
  }
  if (route.needs.model) {
    if (const std::string reason = unready_reason(); !reason.empty() && reason != "stalled")
      return ApiError{503, reason, "", "the server is " + reason, 2};
  }
  return std::nullopt;
}

std::optional<HttpResponse> Service::check(const HttpRequest& head) {
  if (!hosts_.host_allowed(head.header("host"))) {
    return error_response(
        head, Api::kChat,
        {403, "wrong_host", "",
         fmt::format("the Host header names another machine, '{}': a server without keys answers "
                     "to it with --allowed-host",
                     short_text(std::string(head.header("host")))),
         0});
  }
  const bool preflights = head.method == "OPTIONS";
  const HostRule::Origin origin = hosts_.origin_of(head);
  const bool listed = origin == HostRule::Origin::kOwn || origin == HostRule::Origin::kListed;
  if (preflights ? !listed : !hosts_.origin_allowed(head))
    return error_response(head, Api::kChat, wrong_origin(head));
  const auto found = find_route(routes(), head.path);
  const bool served = found && (!options_.http.admin_port || is_open(*found->route) ||
                                found->route->served_at(/*admin_port=*/head.admin));
  if (!served) {
    return error_response(head, api_of_path(head.path),
                          {404, "route_not_found", "", "no such route: " + one_line(head.path), 0});
  }
  const Route& route = *found->route;
  if (preflights) return preflight(head, route);
  if (!route.takes(head.method)) {
    HttpResponse response = error_response(
        head, route.api, {405, "method_not_allowed", "", fmt::format("want {}", route.method), 0});
    response.headers.emplace_back("Allow", route.allow());
    return response;
  }
  const auto refused = refusal(head, route);
  if (!refused) return std::nullopt;
  count_rejection(*refused);
  return error_response(head, route.api, *refused);
}

HttpResponse Service::preflight(const HttpRequest& head, const Route& route) const {
  HttpResponse response{.status = 204, .content_type = ""};
  response.headers = {{"Access-Control-Allow-Methods", std::string(route.allow())},
                      {"Access-Control-Max-Age", "7200"}};
  if (const auto asked = head.header("access-control-request-headers"); !asked.empty())
    response.headers.emplace_back("Access-Control-Allow-Headers", asked);
  return answer(head, std::move(response));
}

HttpResponse Service::answer(const HttpRequest& head, HttpResponse response) const {
  const bool has_id =
      std::any_of(response.headers.begin(), response.headers.end(),
                  [](const auto& header) { return header.first == "x-request-id"; });
  if (!has_id) response.headers.emplace_back("x-request-id", name_of(head));
  response.headers.emplace_back("X-Content-Type-Options", "nosniff");
  if (!options_.cors_origins.empty()) response.headers.emplace_back("Vary", "Origin");
  const HostRule::Origin origin = hosts_.origin_of(head);
  if (origin == HostRule::Origin::kOwn || origin == HostRule::Origin::kListed) {
    response.headers.emplace_back("Access-Control-Allow-Origin", head.header("origin"));
    response.headers.emplace_back("Access-Control-Expose-Headers",
                                  "x-request-id, x-dsv4-seed, x-dsv4-warning, Retry-After");
  }
  return response;
}

HttpResponse Service::error_response(const HttpRequest& head, Api api,
                                     const ApiError& error) const {
  const std::string id = name_of(head);
  HttpResponse response{.status = status_of(api, error),
                        .headers = {{"x-request-id", id}},
                        .body = error_body(api, error, id)};
  if (error.retry_after > 0)
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after));
  return answer(head, std::move(response));
}

HttpResponse Service::error(const HttpRequest& head, int status, const std::string& message) {
  const ApiError error{status, "", "", message, status == 503 ? 1 : 0};
  count_rejection(error);
  const auto found = find_route(routes(), head.path);
  return error_response(head, found ? found->route->api : Api::kChat, error);
}

void Service::caught(const std::exception& exception) {
  log_line("internal_error", {{"error", short_text(exception.what())}});
}

// ---- Generations

Service::Response Service::generate(const RoutedRequest& request) {
  const std::shared_ptr<Exchange> exchange = request.exchange;
  const Api api = request.api;
  const auto gone = std::make_shared<bool>(false);  // the client, before the request is admitted
  exchange->on_gone = [this, gone] {
    *gone = true;
    metrics_.add("dsv4_disconnects_total");
  };
  const ApiKey* key = options_.isolate_keys ? key_of(exchange->request()) : nullptr;
  const std::string owner = key == nullptr ? "" : key->name;
  const auto prepared = std::make_shared<Prepared>();
  const auto error = std::make_shared<std::optional<ApiError>>();
  const auto work = [this, exchange, api, owner, prepared, error, model = model_] {
    try {
      *prepared = prepare(api, exchange->request().body, *model, seal_key_, owner);
    } catch (const std::exception& exception) {
      *error = api_error(exception);
    }
  };
  on_worker(*bodies_, exchange, api, work, [this, exchange, api, gone, prepared, error] {
    if (*gone) return;
    exchange->request().drop_body();
    if (!*error && !prepared->ready.empty())
      return exchange->respond(answer(exchange->request(), {.body = std::move(prepared->ready)}));
    try {
      if (!*error) return admit(exchange, prepared);
      refuse(exchange, api, **error);
    } catch (const std::exception& exception) {
      caught(exception);
      refuse(exchange, api, api_error(exception));
    }
  });
  return std::nullopt;
}

void Service::refuse(const std::shared_ptr<Exchange>& exchange, Api api, const ApiError& error) {
  count_rejection(error);
  exchange->respond(error_response(exchange->request(), api, error));
}

std::optional<ApiError> Service::admission_error(const Prepared& prepared, const std::string& key,
                                                 const std::string& client) const {
  const EngineThread::State state = engine_->state();
  if (state.broken) return ApiError{503, "broken", "", "the engine is broken", 5};
  if (draining_) return ApiError{503, "draining", "", "the server is shutting down", 5};
  const size_t jobs = prepared.answer.choices;
  int64_t tokens = 0;
  for (const auto& prompt : prepared.prompts) tokens += static_cast<int64_t>(prompt.size());
  const bool busy = state.queued > 0 || state.running > 0;
  if (busy &&
      (!has_room(client, options_.max_queue, state.queued, engine_->queued_of(client), jobs) ||
       state.queued_tokens + tokens > options_.max_queue_tokens)) {
    return ApiError{429, "queue_full", "", "the queue is full", retry_after()};
  }
  if (options_.max_per_key == 0) return std::nullopt;
  const auto of_key =
      std::count_if(generations_.begin(), generations_.end(),
                    [&](const auto& entry) { return entry.second->report().key == key; });
  if (static_cast<size_t>(of_key) < options_.max_per_key) return std::nullopt;
  return ApiError{429, "key_limit", "", "too many requests with this key", retry_after()};
}

std::string Service::client_of(const HttpRequest& request) const {
  const ApiKey* key = key_of(request);
  if (key == nullptr) return client_at(request.peer);
  return keys_.size() == 1 ? "" : "key " + key->name;
}

int64_t Service::retry_after() const {
  if (waits_.empty()) return 1;
  std::vector<double> sorted(waits_.begin(), waits_.end());
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<long>(sorted.size() / 2),
                   sorted.end());
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(sorted[sorted.size() / 2])), 1, 60);
}

void Service::admit(std::shared_ptr<Exchange> exchange, std::shared_ptr<Prepared> prepared) {
  const ApiKey* key = key_of(exchange->request());
  const std::string key_name = key == nullptr ? "" : key->name;
  const Api api = prepared->api;
  const std::string client = client_of(exchange->request());
  if (const auto error = admission_error(*prepared, key_name, client))
    return refuse(exchange, api, *error);
  const std::string id = random_id("req_");
  const EngineThread::QueueInfo info{client, prepared->settings.priority, id};
  if (info.priority > 0 && key != nullptr && !key->admin) {
    return refuse(exchange, api, {403, "", "priority", "priority: above 0 is for admin keys", 0});
  }
  const std::string client_id = client_request_id(exchange->request());
  prepared->answer.request_id = client_id.empty() ? id : client_id;
  prepared->answer.created = std::time(nullptr);
  HttpResponse head =
      answer(exchange->request(), {.headers = {{"x-request-id", prepared->answer.request_id}}});
  if (!prepared->settings.has_seed) {
    head.headers.emplace_back("x-dsv4-seed", std::to_string(prepared->settings.sampling.seed));
  }
  log_ignored(*prepared);
  if (!prepared->ignored.empty())
    head.headers.emplace_back("x-dsv4-warning", warning_of(prepared->ignored));
  auto generation = std::make_shared<Generation>(
      std::move(*prepared), model_, exchange,
      Generation::Origin{.request_id = id,
                         .client_id = client_id,
                         .key = key_name,
                         .path = exchange->request().path,
                         .caller = parse_traceparent(exchange->request().header("traceparent"))});
  generations_[id] = generation;
  exchange->on_gone = [this, id] { client_disconnected(id); };
  guarded(generation, [&] {
    for (size_t k = 0; k < generation->choices(); ++k) {
      const JobId job = engine_->submit(generation->job_prompt(k), generation->job_params(k), info);
      generation->set_job(k, job);
      jobs_[job] = {generation, k};
    }
    generation->begin(std::move(head.headers));
  });
}

void Service::guarded(const std::shared_ptr<Generation>& generation,
                      const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& exception) {
    caught(exception);
    generation->fail(api_error(exception));
  }
  if (generation->over()) remove(generation);
}

void Service::on_events(const std::vector<EngineEvent>& events) {
  if (events.empty()) {
    if (engine_ && engine_->state().load_failed) return http_->stop();
    const std::lock_guard lock(model_mutex_);
    model_ = loaded_;
    if (options_.log_requests) {
      log_line("ready", {{"port", port()},
                         {"model", model_ ? model_->names.front() : ""},
                         {"context", model_ ? model_->limits.context : 0}});
    }
    return;
  }
  std::vector<std::shared_ptr<Generation>> touched;
  for (const EngineEvent& event : events) {
    const auto job = jobs_.find(event.job);
    if (job == jobs_.end()) continue;  // its request is over
    const Job of = job->second;
    guarded(of.generation, [&] { on_event(event, of); });
    if (std::find(touched.begin(), touched.end(), of.generation) == touched.end())
      touched.push_back(of.generation);
  }
  for (const auto& generation : touched) guarded(generation, [&] { flush(*generation); });
}

void Service::on_event(const EngineEvent& event, const Job& job) {
  const bool last =
      event.kind == EngineEvent::Kind::kFinished || event.kind == EngineEvent::Kind::kFailed;
  if (last) jobs_.erase(event.job);
  job.generation->on_event(job.choice, event);
  if (last || !job.generation->wants_cancel(job.choice)) return;
  engine_->cancel(event.job);
  jobs_.erase(event.job);
}

void Service::flush(Generation& generation) {
  generation.flush();
  const std::vector<double> intervals = generation.take_intervals();
  for (const double seconds : intervals) metrics_.observe("dsv4_itl_seconds", seconds);
  // The tokens after the first come from the same step.
  if (!intervals.empty()) metrics_.observe("dsv4_batch_interval_seconds", intervals.front());
}

// The client has left.
void Service::client_disconnected(const std::string& request_id) {
  const auto found = generations_.find(request_id);
  if (found == generations_.end()) return;
  metrics_.add("dsv4_disconnects_total");
  const std::shared_ptr<Generation> generation = found->second;
  generation->client_disconnected();
  remove(generation);
}

// ---- Life

void Service::on_tick(Generation& generation, Clock::time_point now) {
  const auto wait = std::chrono::duration<double>(options_.max_wait).count();
  if (wait > 0 && !generation.started() && generation.seconds_since_begin() > wait) {
    generation.fail({429, "queue_timeout", "",
                     fmt::format("the request waited {} s, the most that it may here", wait),
                     retry_after()});
  }
  generation.on_tick(now, options_.keep_alive);
}

void Service::on_tick() {
  const auto now = Clock::now();
  if (model_) model_->grammars.trim();
  const bool reading = bodies_->size() + texts_->size() > 0;
  log_tls_clients(now);
  if (memory_.is_due(now, reading, !generations_.empty())) http_->post_worker(give_back_memory);
  std::vector<std::shared_ptr<Generation>> all;
  for (const auto& [id, generation] : generations_) all.push_back(generation);
  for (const auto& generation : all) guarded(generation, [&] { on_tick(*generation, now); });
  if (stopping_ && now >= stop_from_ && (http_->busy() == 0 || now > stop_at_))
    return http_->stop();
  if (stopping_) return;
  if (engine_->state().broken) {
    log_line("broken", {{"error", short_text(engine_->state().error)}});
    status_ = kExitBroken;
    stopping_ = draining_ = true;
    stop_from_ = now + kBroken;
    stop_at_ = stop_from_ + kLastWrites;
  } else if (draining_ && (now > drain_end_ || (generations_.empty() && http_->busy() == 0))) {
    finish_drain();
  }
}

void Service::on_signal(int number) {
  if (number == SIGHUP) {
    try {
      read_keys();
      log_line("keys", {{"count", keys_.size()}});
    } catch (const std::exception& error) {
      log_line("keys", {{"error", short_text(error.what())}});  // the old ones stay
    }
    return;
  }
  if (!draining_) return begin_drain();
  log_line("second_signal", {{"signal", number}});
  if (options_.on_second_signal) options_.on_second_signal(number);
  http_->stop();
}

void Service::begin_drain() {
  if (draining_) return;
  draining_ = true;
  drain_end_ = Clock::now() + options_.drain;
  http_->stop_listening();
  if (options_.log_requests) log_line("drain", {{"requests", generations_.size()}});
  std::vector<std::shared_ptr<Generation>> waiting;
  for (const auto& [id, generation] : generations_) {
    if (!generation->started()) waiting.push_back(generation);
  }
  for (const auto& generation : waiting) {
    generation->fail({503, "draining", "", "the server is shutting down", 5});
    remove(generation);
  }
}

// What still runs gets an error event.
void Service::finish_drain() {
  std::vector<std::shared_ptr<Generation>> all;
  for (const auto& [id, generation] : generations_) all.push_back(generation);
  for (const auto& generation : all) {
    generation->fail({503, "draining", "", "the server is shutting down", 5});
    remove(generation);
  }
  stopping_ = true;
  stop_at_ = Clock::now() + kLastWrites;
}

}  // namespace dsv4
