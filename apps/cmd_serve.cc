// dsv4 serve MODEL: the HTTP server (docs/spec/serving.md 3).

#include <arpa/inet.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>

#include "apps/chat_model.h"
#include "apps/commands.h"
#include "apps/common.h"
#include "apps/habits.h"
#include "apps/kv_events.h"
#include "apps/signals.h"
#include "apps/threads.h"
#include "apps/trace_export.h"
#include "apps/version.h"
#include "dsv4/base/atomic_file.h"
#include "dsv4/base/env.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/base/quote.h"
#include "dsv4/chat/replay_file.h"
#include "dsv4/comm/rank_processes.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/server/server_log.h"
#include "dsv4/server/service.h"

namespace dsv4::apps {
namespace {

constexpr int64_t kMaxCount = 1 << 20;  // of connections and requests

struct ServeOptions {
  ChatModelOptions model{.max_batch = 16, .max_scored_tokens = 64};
  std::vector<std::string> names;
  bool any_model = false, strict_fields = false, reasoning_alias = false;
  bool lenient_tools = false, require_reasoning = false;
  ServiceOptions service;
  ToolGrammar tool_grammar = ToolGrammar::kStrict;
  bool tool_coerce = false, processed_logprobs = false;
  int64_t drain_seconds = 60, watchdog_seconds = 30, max_body_mib = 64, max_queue_ms = 0;
  int64_t max_bodies_mib = 256;
  bool quiet = false, no_alias = false;
  std::string api_key;
  KvEventOptions kv_events;
};

// What stays when the engine is gone.
struct Kept {
  std::shared_ptr<ServedModel> model;
  std::function<void()> finish_record;  // ChatModel
};

Service::Loaded load(const ServeOptions& options, Kept& kept) {
  ChatModel model = load_chat_model(options.model);
  kept = {.model = model.text, .finish_record = model.finish_record};
  if (!options.names.empty()) model.text->names = options.names;
  model.text->any_name = options.any_model;
  model.text->chat.lenient_tools = options.lenient_tools;
  model.text->chat.require_reasoning = options.require_reasoning;
  model.text->tool_grammar = options.tool_grammar;
  model.text->tool_coerce = options.tool_coerce;
  model.text->sampling.processed_logprobs = options.processed_logprobs;
  model.text->strict_fields = options.strict_fields;
  model.text->reasoning_alias = options.reasoning_alias;
  return {.engine = std::move(model.engine), .model = model.text};
}

// A connection is a descriptor: raise the limit of the process to what the options may need.
void want_descriptors(size_t connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = connections + 64;
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < wanted) {
    fail(ErrorCode::kResource,
         "{} connections need {} file descriptors, and the limit is {}: raise it (ulimit -n) or "
         "give --max-connections",
         connections, wanted, limit.rlim_cur);
  }
}

// The replay map lives with the disk tier. A file that cannot be used is a line in the log and no
// reason not to serve.
template <class Use>
void with_replay_file(const ServeOptions& options, const Use& use) {
  try {
    const std::string tokenizer = read_text_file(tokenizer_file(folder_of(options.model)));
    use(replay_file(options.model.disk_cache, tokenizer), tokenizer);
  } catch (const Error& error) {
    log_line("replay_map", {{"error", error.what()}});
  }
}

void load_replay(const ServeOptions& options, const ServedModel& model) {
  with_replay_file(options, [&](const std::string& path, const std::string& tokenizer) {
    load_replay_map(model.replay, path, tokenizer);
  });
}

void save_replay(const ServeOptions& options, const ServedModel& model) {
  with_replay_file(options, [&](const std::string& path, const std::string& tokenizer) {
    save_replay_map(model.replay, path, tokenizer);
  });
}

// Null where no endpoint is given.
std::unique_ptr<KvEventPublisher> publish_kv_events(ServeOptions& options) {
  if (options.kv_events.endpoint.empty()) {
    if (!options.kv_events.replay_endpoint.empty() || !options.kv_events.topic.empty())
      fail(ErrorCode::kBadInput, "--kv-events-replay and --kv-events-topic need --kv-events");
    return nullptr;
  }
  if (options.model.prefix_checkpoints == 0)
    fail(ErrorCode::kBadInput,
         "--kv-events needs stored prefixes: --prefix-checkpoints 0 stores none");
  auto publisher = std::make_unique<KvEventPublisher>(options.kv_events);
  options.model.block_events = [to = publisher.get()](BlockEvent event) {
    to->add(std::move(event));
  };
  log_line("kv_events",
           {{"endpoint", publisher->endpoint()}, {"replay", publisher->replay_endpoint()}});
  return publisher;
}

void set_kv_event_metrics(const KvEventPublisher& publisher, Metrics& metrics) {
  const KvEventPublisher::Counts counts = publisher.counts();
  const auto set = [&](const char* name, int64_t value) {
    metrics.set(name, static_cast<double>(value));
  };
  set("dsv4_kv_events_total", counts.events);
  set("dsv4_kv_event_batches_total", counts.batches);
  set("dsv4_kv_events_lost_total", counts.lost);
  set("dsv4_kv_event_replays_total", counts.replays);
}

// Null where the environment names no collector.
std::unique_ptr<TraceExporter> export_traces(ServeOptions& options) {
  const TraceOptions wanted = trace_options(env, options.service.version);
  if (wanted.endpoint.empty()) return nullptr;
  auto exporter = std::make_unique<TraceExporter>(wanted, options.service.version);
  options.service.on_trace = [to = exporter.get()](RequestTrace trace) {
    to->add(std::move(trace));
  };
  return exporter;
}

void serve(ServeOptions options) {
  check_synthetic_options(options.model.random, options.model.model, options.model.device, "serve");
  tokenizer_file(folder_of(options.model));  // throws before a port is taken
  follow_if_rank(options.model);
  options.service.api_keys = {{"environment", env("DSV4_API_KEY")}, {"option", options.api_key}};
  options.service.version = version_text();
  options.service.drain = std::chrono::seconds(options.drain_seconds);
  options.service.max_wait = std::chrono::milliseconds(options.max_queue_ms);
  options.service.watchdog = std::chrono::seconds(options.watchdog_seconds);
  options.service.http.max_body_bytes = static_cast<size_t>(options.max_body_mib) << 20;
  options.service.http.max_body_memory = static_cast<size_t>(options.max_bodies_mib) << 20;
  // Clients that come at the same time wait for a worker before they wait in the queue.
  options.service.max_preparing =
      std::max(options.service.max_preparing, options.service.max_queue);
  options.service.log_requests = !options.quiet;
  options.service.metrics_alias = !options.no_alias;
  options.model.on_disk_state = [](const std::string& error) {
    if (error.empty()) return log_line("disk_cache", {{"state", "works again"}});
    log_line("disk_cache", {{"state", "paused, tried again every minute"}, {"error", error}});
  };
  options.service.on_second_signal = [](int number) {
    remove_temporary_files();
    _exit(128 + number);
  };
  std::signal(SIGPIPE, SIG_IGN);  // the reader of the log may leave
  const HttpServerOptions& http = options.service.http;
  want_descriptors(http.max_connections + (http.admin_port ? http.max_admin_connections : 0));
  // Both outlive the service, which hands over what they send.
  const std::unique_ptr<KvEventPublisher> kv_events = publish_kv_events(options);
  const std::unique_ptr<TraceExporter> traces = export_traces(options);
  options.service.more_metrics = [&](Metrics& metrics) {
    if (kv_events != nullptr) set_kv_event_metrics(*kv_events, metrics);
    if (traces == nullptr) return;
    metrics.set("dsv4_trace_spans_total", static_cast<double>(traces->exported()));
    metrics.set("dsv4_trace_spans_dropped_total", static_cast<double>(traces->dropped()));
  };
  Kept kept;
  int status = 0;
  {
    // The engine's thread loads and computes.
    Service service(options.service, [&options, &kept, threads = num_threads()] {
      use_threads(threads);
      try {
        Service::Loaded loaded = load(options, kept);
        if (!options.model.disk_cache.empty()) load_replay(options, *kept.model);
        return loaded;
      } catch (const std::exception& error) {
        tell_other_ranks(error.what());
        throw;
      }
    });
    if (!options.quiet) {
      Json line = {{"host", options.service.http.host}, {"port", service.port()}};
      if (options.model.engine.empty())
        line["device"] = options.model.device == "auto" ? default_device() : options.model.device;
      if (service.admin_port() != 0) line["admin_port"] = service.admin_port();
      log_line("listening", line);
    }
    status = service.run();
    install_signal_handlers();  // a further signal ends the wait for the engine's last step
  }
  if (kept.model != nullptr && !options.model.disk_cache.empty()) save_replay(options, *kept.model);
  if (kept.finish_record) kept.finish_record();
  if (status != 0) throw ExitStatus{status};
}

void add_request_options(CLI::App& command, ServeOptions& options) {
  command.add_option("--served-model-name", options.names,
                     "names that requests may use; default: MODEL");
  command.add_flag("--any-model", options.any_model, "accept every name");
  command.add_flag("--lenient-tools", options.lenient_tools,
                   "accept tool results that match no call");
  command.add_flag("--require-reasoning", options.require_reasoning,
                   "refuse histories without the reasoning that would be rendered");
  command
      .add_option(
          "--tool-grammar", options.tool_grammar,
          "what calls must obey that a request does not force: nothing, the tags and names, "
          "also the schemas of tools with strict: true, or those of all tools")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, ToolGrammar>{{"off", ToolGrammar::kOff},
                                             {"tags", ToolGrammar::kTags},
                                             {"strict", ToolGrammar::kStrict},
                                             {"all", ToolGrammar::kAll}}))
      ->option_text("off|tags|strict|all (strict)");
  command.add_flag("--tool-coerce", options.tool_coerce,
                   "make arguments of calls the types that the tools' schemas declare");
  command
      .add_option("--logprobs-mode", options.processed_logprobs,
                  "log-probabilities of the logits as the model gives them, or of what tokens are "
                  "drawn from, after penalties, biases, masks, temperature and cuts")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, bool>{{"raw", false}, {"processed", true}}))
      ->option_text("raw|processed (raw)");
  command.add_flag("--strict-fields", options.strict_fields, "refuse unknown fields");
  command.add_flag("--reasoning-alias", options.reasoning_alias,
                   "also send reasoning_content as reasoning");
  command.add_option("--max-batch", options.model.max_batch, "sequences that run at once")
      ->check(integer_in(1, 4096))
      ->capture_default_str();
  command
      .add_option("--cache-tokens", options.model.cache_tokens,
                  "tokens that the cache of all sequences holds; default: twice the context")
      ->check(integer_in(16, int64_t{1} << 40));
  command
      .add_option("--max-itl-ms", options.model.max_itl_ms,
                  "time between the tokens of an answer that prompts beside it may take; 0: any")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
  command
      .add_option("--max-batch-tokens", options.model.max_batch_tokens,
                  "tokens of one step; default: 512 on the CPU, 2048 on a GPU, 8192 with "
                  "--experts-memory")
      ->check(integer_in(1, 1 << 20));
}

CLI::Validator ip_address() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        unsigned char bytes[sizeof(in6_addr)];
        const bool valid = inet_pton(AF_INET, text.c_str(), bytes) == 1 ||
                           inet_pton(AF_INET6, text.c_str(), bytes) == 1;
        return valid ? "" : fmt::format("'{}': want an IP address", quotable(text));
      },
      "");
}

// As browsers send it: no path, no slash at the end, and no pattern.
CLI::Validator origin() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const size_t scheme = text.find("://");
        const bool valid = scheme != text.npos && scheme > 0 && scheme + 3 < text.size() &&
                           text.find_first_of("*/?# ", scheme + 3) == text.npos;
        return valid ? ""
                     : fmt::format("'{}': want one origin, as https://app.example", quotable(text));
      },
      "");
}

CLI::Validator host_pattern() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const std::string error = allowed_host_error(text);
        return error.empty() ? "" : fmt::format("'{}': {}", quotable(text), error);
      },
      "");
}

void add_server_options(CLI::App& command, ServeOptions& options) {
  ServiceOptions& service = options.service;
  command
      .add_option("--host", service.http.host,
                  "address to listen on; others than loopback "
                  "need a key")
      ->transform(listen_address())
      ->capture_default_str();
  command.add_option("--port", service.http.port, "0: any free one")
      ->check(integer_in(0, 65535))
      ->capture_default_str();
  command
      .add_option("--admin-port", service.http.admin_port,
                  "where /metrics and the routes for admin keys are served, and not at --port; 0: "
                  "any free one")
      ->check(integer_in(0, 65535));
  command.add_option(
      "--api-key-file", service.api_key_file,
      "one name:key[:admin] or name:sha256:HEX[:admin] a line; read again on SIGHUP");
  command.add_option("--api-key", options.api_key,
                     "one key; users of this machine see it, so rather DSV4_API_KEY or a file");
  command
      .add_option("--allowed-host", service.allowed_hosts,
                  "names beside local ones that requests may call a server without keys: "
                  "chat.example.com, .example.com with those below it, or *")
      ->check(host_pattern());
  command
      .add_option("--cors-origin", service.cors_origins,
                  "origins whose pages may use the server, as https://app.example")
      ->check(origin());
  command.add_option("--max-connections", service.http.max_connections, "connections in all")
      ->check(integer_in(1, kMaxCount))
      ->capture_default_str();
  command
      .add_option("--max-connections-per-address", service.http.max_per_address,
                  "loopback excepted")
      ->check(integer_in(1, kMaxCount))
      ->capture_default_str();
  command
      .add_option("--trusted-proxy", service.http.trusted_proxies,
                  "address of a proxy whose X-Forwarded-For names the client")
      ->check(ip_address());
  command.add_option("--max-queue", service.max_queue, "requests that may wait")
      ->check(integer_in(0, kMaxCount))
      ->capture_default_str();
  command.add_option("--max-queue-tokens", service.max_queue_tokens, "prompt tokens that may wait")
      ->check(integer_in(0, int64_t{1} << 40))
      ->capture_default_str();
  command
      .add_option("--max-queue-ms", options.max_queue_ms,
                  "time that a request may wait before it gets 429; 0: any")
      ->check(integer_in(0, int64_t{1} << 40))
      ->capture_default_str();
  command.add_flag("--isolate-keys", service.isolate_keys,
                   "requests of different keys share no stored prefix");
  command
      .add_option("--max-per-key", service.max_per_key,
                  "requests of one key that run or wait; 0: no limit")
      ->check(integer_in(0, kMaxCount))
      ->capture_default_str();
  command.add_option("--max-body-mib", options.max_body_mib, "MiB of a request's body")
      ->check(integer_in(1, 1024))
      ->capture_default_str();
  command
      .add_option("--max-bodies-mib", options.max_bodies_mib,
                  "MiB of all bodies that arrive or wait to be read, at least one body's")
      ->check(integer_in(1, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--drain-s", options.drain_seconds,
                  "time that running requests get after SIGTERM")
      ->check(integer_in(0, 86400))
      ->capture_default_str();
  command
      .add_option("--watchdog-s", options.watchdog_seconds,
                  "a step that takes longer makes /ready answer 503")
      ->check(integer_in(1, 86400))
      ->capture_default_str();
  command.add_flag("--log-content", service.log_content, "log prompts and answers, too");
  command.add_flag("--quiet", options.quiet, "no log lines for requests");
  command.add_flag("--no-metrics-alias", options.no_alias, "no metrics under vLLM's names");
  command.add_flag("--open-metrics", service.open_metrics,
                   "/metrics also at --port where there is an --admin-port, and without a key");
  command.add_flag("--open-render", service.open_render,
                   "rendered prompts (/v1/chat/completions/render) without a key, for a router");
  command
      .add_option("--kv-events", options.kv_events.endpoint,
                  "ZeroMQ endpoint at which routers hear which prefixes are stored, such as "
                  "tcp://*:5557. Its events hold prompts: private networks only")
      ->option_text("ENDPOINT");
  command
      .add_option("--kv-events-replay", options.kv_events.replay_endpoint,
                  "ZeroMQ endpoint at which routers ask again for events that they missed, such as "
                  "tcp://*:5558")
      ->option_text("ENDPOINT");
  command
      .add_option("--kv-events-topic", options.kv_events.topic,
                  "topic of the KV events; llm-d wants kv@POD_IP:PORT@MODEL")
      ->option_text("TEXT");
}

}  // namespace

void add_serve(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP");
  auto options = std::make_shared<ServeOptions>();
  command->footer(
      "Example: dsv4 serve demo --port 8000\n"
      "         curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "           -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'");
  add_chat_model_options(*command, options->model);
  add_synthetic_options(*command, options->model.random);
  add_request_options(*command, *options);
  add_server_options(*command, *options);
  add_expert_record(*command, options->model.record);
  command->footer(command->get_footer() +
                  "\n\nOptions by the names of other servers: " + other_names(*command));
  command->callback([options, &action] { action = [options] { serve(*options); }; });
}

}  // namespace dsv4::apps
