// Service: the routes of docs/spec/serving.md 3.1 between HttpServer and EngineThread.
//
//   I/O thread      connections, routes, events of the engine -> answers
//   worker threads  request bodies -> prompts
//   engine thread   the model
//
// Everything but run() and stop() belongs to the I/O thread.

#pragma once

#include <deque>
#include <map>
#include <unordered_map>

#include "dsv4/server/api_keys.h"
#include "dsv4/server/engine_thread.h"
#include "dsv4/server/generation.h"
#include "dsv4/server/host_rule.h"
#include "dsv4/server/http_server.h"
#include "dsv4/server/json_text.h"
#include "dsv4/server/memory_return.h"
#include "dsv4/server/metrics.h"
#include "dsv4/server/request_trace.h"
#include "dsv4/server/routes.h"
#include "dsv4/server/work_queue.h"

namespace dsv4 {

struct ServiceOptions {
  HttpServerOptions http;
  std::string api_key_file;                              // empty: none
  std::map<std::string, std::string> api_keys;           // more keys by their names; empty: none
  std::vector<std::string> allowed_hosts, cors_origins;  // host_rule.h
  size_t max_queue = 256;
  int64_t max_queue_tokens = 4 << 20;
  size_t max_preparing = 256;             // bodies of a kind that wait until a worker reads them
  size_t max_per_key = 0;                 // requests of one key that run or wait; 0: no limit
  std::chrono::milliseconds max_wait{0};  // in the queue; 0: any time
  std::chrono::seconds drain{60}, watchdog{30};
  std::chrono::milliseconds keep_alive{10'000};  // a stream that is silent so long gets a comment
  bool isolate_keys = false;  // requests of different keys share no stored prefix
  bool metrics_alias = true;
  bool open_metrics = false;  // /metrics also at the port of the clients, and without a key
  bool open_render = false;   // rendered prompts without a key
  OnTrace on_trace;           // of every request that was accepted; null: no traces
  // Adds what others count, when /metrics is asked; null: nothing.
  std::function<void(Metrics&)> more_metrics;
  bool log_requests = true;
  bool log_content = false;  // also prompts and answers
  bool handle_signals = true;
  // For a SIGTERM or SIGINT while the server drains. It may end the process, which waits for no
  // step, loading or write; without it run() returns, and the destructor waits for those.
  std::function<void(int)> on_second_signal;
  std::string version;
};

class Service : public HttpHandler {
 public:
  struct Loaded {
    std::unique_ptr<EnginePort> engine;
    std::shared_ptr<const ServedModel> model;
  };
  // Listens at once and loads on the engine thread.
  Service(const ServiceOptions& options, std::function<Loaded()> loader);
  ~Service() override;

  // Serves until it is stopped or drained. Throws what the loader threw; otherwise the exit
  // status: 0, or 70 where the engine broke.
  int run();
  void stop();   // any thread
  void drain();  // as SIGTERM; any thread
  uint16_t port() const { return http_->port(); }
  uint16_t admin_port() const { return http_->admin_port(); }  // 0: there is none
  static std::span<const Route> routes();

  std::optional<HttpResponse> check(const HttpRequest& head) override;
  void handle(std::shared_ptr<Exchange> exchange) override;
  HttpResponse error(const HttpRequest& head, int status, const std::string& message) override;
  void caught(const std::exception& exception) override;

 private:
  using Clock = std::chrono::steady_clock;
  using Response = std::optional<HttpResponse>;  // of a handler: routes.h
  // A body and seal_key_ to the body of the answer, on a worker thread.
  using BodyWork = std::string (*)(const std::string&, const ServedModel&, const std::string&);
  struct Job {
    std::shared_ptr<Generation> generation;
    size_t choice;
  };

  // Before a body is read.
  bool is_open(const Route& route) const;
  std::optional<ApiError> refusal(const HttpRequest& head, const Route& route) const;
  bool authorized(const HttpRequest& head, const Route& route) const;
  const ApiKey* key_of(const HttpRequest& head) const;
  HttpResponse answer(const HttpRequest& head, HttpResponse response) const;
  HttpResponse error_response(const HttpRequest& head, Api api, const ApiError& error) const;
  HttpResponse preflight(const HttpRequest& head, const Route& route) const;
  void read_keys();

  // Handlers of routes.
  Response generate(const RoutedRequest& request);
  template <BodyWork kWork>
  Response answer_from_body(const RoutedRequest& request);
  Response models(const RoutedRequest& request);
  Response model(const RoutedRequest& request);
  Response requests(const RoutedRequest& request);
  Response cancel(const RoutedRequest& request);
  Response cache(const RoutedRequest& request);
  Response drop_cache(const RoutedRequest& request);
  Response health(const RoutedRequest& request);
  Response ready(const RoutedRequest& request);
  Response version(const RoutedRequest& request);
  Response metrics(const RoutedRequest& request);
  Response page(const RoutedRequest& request);
  Response ollama_models(const RoutedRequest& request);
  Response ollama_processes(const RoutedRequest& request);
  Response ollama_version(const RoutedRequest& request);
  Response not_here(const RoutedRequest& request);

  std::string unready_reason() const;
  bool overloaded() const;
  void set_cache_metrics(const EngineStats& stats);
  void set_memory_metrics(const EngineThread::State& state);
  void set_speculation_metrics(const SpeculationStats& stats);
  void set_expert_metrics(const ExpertStats& stats);
  void set_rank_metrics(const std::vector<RankStats>& ranks);
  void count_rejection(const ApiError& error);
  // Runs `work` on a worker thread and then `done` on the I/O thread; 429 where too many bodies
  // wait in this queue.
  void on_worker(WorkQueue& queue, const std::shared_ptr<Exchange>& exchange, Api api,
                 std::function<void()> work, std::function<void()> done);

  // Generations.
  void refuse(const std::shared_ptr<Exchange>& exchange, Api api, const ApiError& error);
  void admit(std::shared_ptr<Exchange> exchange, std::shared_ptr<Prepared> prepared);
  // The client that shares the queues with others (shares.h).
  std::string client_of(const HttpRequest& request) const;
  std::optional<ApiError> admission_error(const Prepared& prepared, const std::string& key,
                                          const std::string& client) const;
  int64_t retry_after() const;
  void log_ignored(const Prepared& prepared);
  void log_tls_clients(Clock::time_point now);
  void on_events(const std::vector<EngineEvent>& events);
  void on_event(const EngineEvent& event, const Job& job);
  // What `work` throws ends this generation, not the server. A generation that is over is removed.
  void guarded(const std::shared_ptr<Generation>& generation, const std::function<void()>& work);
  void flush(Generation& generation);
  void remove(const std::shared_ptr<Generation>& generation);
  void add_content(const Generation& generation, Json& line) const;
  void trace(const Generation& generation) const;
  void client_disconnected(const std::string& request_id);

  void on_tick();
  void on_tick(Generation& generation, Clock::time_point now);
  void on_signal(int number);
  void begin_drain();
  void finish_drain();

  const ServiceOptions options_;
  ApiKeys keys_;
  HostRule hosts_;
  const std::string seal_key_;
  Metrics metrics_;
  std::map<std::string, std::shared_ptr<Generation>> generations_;  // by request id
  std::map<JobId, Job> jobs_;
  std::deque<double> waits_;  // seconds in the queue, of the latest requests
  std::map<std::string, Clock::time_point> logged_fields_;  // that had no effect, and when
  int64_t tls_logged_ = 0;
  Clock::time_point next_tls_log_;
  bool draining_ = false, stopping_ = false;
  Clock::time_point drain_end_, stop_from_, stop_at_;
  int status_ = 0;

  std::mutex model_mutex_;
  std::shared_ptr<const ServedModel> loaded_;  // by the engine thread
  std::shared_ptr<const ServedModel> model_;   // the I/O thread's

  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<WorkQueue> bodies_;  // of requests that generate
  std::unique_ptr<WorkQueue> texts_;   // of those that only want ids or text
  MemoryReturn memory_;
  std::unique_ptr<EngineThread> engine_;  // ends first
};

}  // namespace dsv4
