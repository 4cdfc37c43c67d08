// How a request wants its answer: sampling, limits, streaming (docs/spec/serving.md 3.2). All
// APIs arrive here as a chat or a completions body.
//
// What the engine cannot do is refused by name, never dropped.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dsv4/chat/fields.h"
#include "dsv4/engine/token_terms.h"

namespace dsv4 {

enum class Api { kChat, kCompletions, kMessages, kResponses, kOllamaChat, kOllamaGenerate };
constexpr int kNumApis = 6;
const char* name(Api api);
constexpr bool is_ollama(Api api) {
  return api == Api::kOllamaChat || api == Api::kOllamaGenerate;
}

struct Settings {
  SamplingParams sampling;
  bool has_top_p = false, has_seed = false;  // the client chose them
  std::vector<LogitBias> logit_bias;
  std::optional<int64_t> max_tokens;
  int64_t min_tokens = 0;
  int64_t n = 1;
  std::vector<std::string> stops;
  std::vector<int32_t> stop_ids;
  bool ignore_eos = false, include_stop = false;
  bool stream = false, include_usage = false, continuous_usage = false;
  bool logprobs = false, echo = false;
  bool return_ids = false;  // of the prompt and of the answer
  int64_t deadline_ms = 0;  // 0: none
  int priority = 0;         // -2 .. 2
  bool speculate = true;    // where the engine does
  std::string prediction;   // the answer as the client expects it; empty: it does not say
  std::string salt;         // of the replay map and the prefix cache
  std::string user;         // user, safety_identifier or prompt_cache_key; the log has a hash of it
};

// `api`: kChat or kCompletions, whose fields differ. `sampling`: where the body says nothing.
// Without a seed the settings get a random one.
Settings read_settings(const Field& body, Api api, const SamplingParams& sampling,
                       int32_t vocab_size);

}  // namespace dsv4
