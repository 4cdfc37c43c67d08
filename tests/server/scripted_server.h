// A whole server on a free port of loopback whose engine answers from a script, with the bundled
// model's tokenizer; without a script, the bundled model answers.

#pragma once

#include <thread>

#include "dsv4/server/service.h"
#include "tests/server/http_client.h"

namespace dsv4::test {

using nlohmann::json;

inline std::shared_ptr<ServedModel> demo_text() {
  static const auto tokenizer =
      std::make_shared<const Tokenizer>(Tokenizer::load("models/demo/tokenizer.json"));
  auto model = std::make_shared<ServedModel>(tokenizer);
  model->names = {"demo", "other/name"};
  model->chat.default_thinking = false;
  model->created = 1'700'000'000;
  return model;
}

struct ScriptOptions {
  ServiceOptions service;
  int64_t context = 4096;
  int max_sequences = 4;
  int32_t padding_ids = 0;  // of the model, which the tokenizer does not have
  ToolGrammar tool_grammar = ToolGrammar::kStrict;
  bool tool_coerce = false, processed_logprobs = false;
  bool thinking = false;  // where a request does not say
  std::function<std::unique_ptr<EnginePort>(const EngineLimits&)> engine;  // instead of a script's
};

class ScriptedServer {
 public:
  explicit ScriptedServer(const std::string& script, ScriptOptions options = {})
      : service_(quiet(options.service), loader(script, options)),
        thread_([this] { status_ = service_.run(); }) {
    while (ask(port(), "GET", "/ready").status != 200) std::this_thread::yield();
  }
  ~ScriptedServer() {
    service_.stop();
    if (thread_.joinable()) thread_.join();
  }

  uint16_t port() const { return port_; }
  Service& service() { return service_; }
  // The exit status, after the server has ended by itself.
  int wait() {
    thread_.join();
    return status_;
  }
  Answer post(std::string_view path, const json& body, std::string_view headers = "") {
    return ask(port(), "POST", path, body.dump(), headers);
  }
  Answer chat(const json& body) { return post("/v1/chat/completions", body); }
  // The first choice of a chat completion.
  json choice(const json& body) { return chat(body).json()["choices"][0]; }

 private:
  static ServiceOptions quiet(ServiceOptions options) {
    options.http.port = 0;
    options.log_requests = options.handle_signals = false;
    options.version = "test";
    return options;
  }
  static std::function<Service::Loaded()> loader(const std::string& script,
                                                 const ScriptOptions& options) {
    return [script, options] {
      auto model = demo_text();
      const EngineLimits limits{.vocab_size = model->tokenizer->vocab_size() + options.padding_ids,
                                .context = options.context,
                                .max_sequences = options.max_sequences,
                                .eos = {1}};
      Service::Loaded loaded;
      if (options.engine) {
        loaded.engine = options.engine(limits);
      } else if (script.empty()) {
        loaded.engine = model_engine(std::make_shared<Model>(Model::load("models/demo")),
                                     {.max_tokens = options.context,
                                      .max_sequences = options.max_sequences,
                                      .max_batch_tokens = 256,
                                      .prefix_checkpoints = 4,
                                      .tiers = {.ram_bytes = 64 << 20},
                                      .max_scored_tokens = 16});
      } else {
        loaded.engine = script_engine(script, "script", model->tokenizer, limits);
      }
      model->chat.default_thinking = options.thinking;
      model->limits = limits;
      model->tool_grammar = options.tool_grammar;
      model->tool_coerce = options.tool_coerce;
      model->sampling.processed_logprobs = options.processed_logprobs;
      loaded.model = model;
      return loaded;
    };
  }

  Service service_;
  uint16_t port_ = service_.port();
  int status_ = -1;
  std::thread thread_;
};

}  // namespace dsv4::test
