#include "dsv4/server/settings.h"

#include <openssl/rand.h>

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/chat/request_error.h"
#include "dsv4/server/numbers.h"

namespace dsv4 {

const char* name(Api api) {
  switch (api) {
    case Api::kChat:
      return "chat";
    case Api::kCompletions:
      return "completions";
    case Api::kMessages:
      return "messages";
    case Api::kResponses:
      return "responses";
    case Api::kOllamaChat:
      return "ollama_chat";
    case Api::kOllamaGenerate:
      return "ollama_generate";
  }
  return "?";
}

namespace {

constexpr int64_t kMaxSeed = INT64_MAX;
constexpr size_t kMaxStops = 16, kMaxStopBytes = 256;
constexpr size_t kMaxStopIds = 1024;  // each token is compared with all

[[noreturn]] void unsupported(const std::string& field, std::string_view why) {
  throw RequestError("unsupported_value", field, fmt::format("{}: {}", field, why));
}

uint64_t random_seed() {
  uint64_t seed = 0;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(&seed), sizeof seed) != 1)
    fail(ErrorCode::kResource, "libcrypto has no random numbers");
  return seed & static_cast<uint64_t>(kMaxSeed);
}

void read_sampling(const Field& body, Settings& out) {
  if (const auto value = read_number(body.at("temperature"), 0, 2))
    out.sampling.temperature = static_cast<float>(*value);
  if (const auto value = read_number(body.at("top_p"), 0, 1, LowEnd::kExcluded)) {
    out.sampling.top_p = std::max(static_cast<float>(*value), 1e-7f);
    out.has_top_p = true;
  }
  if (const auto value = read_integer(body.at("top_k"), -1, 1 << 24))
    out.sampling.top_k = static_cast<int>(std::max<int64_t>(*value, 0));
  auto seed = read_integer(body.at("seed"), -1, kMaxSeed);
  if (seed && *seed < 0) seed.reset();  // -1: at random, as front ends send it
  out.has_seed = seed.has_value();
  out.sampling.seed = seed ? static_cast<uint64_t>(*seed) : random_seed();
  if (const auto value = read_number(body.at("min_p"), 0, 1))
    out.sampling.min_p = static_cast<float>(*value);
  if (const auto value = read_number(body.at("presence_penalty"), -2, 2))
    out.sampling.presence_penalty = static_cast<float>(*value);
  if (const auto value = read_number(body.at("frequency_penalty"), -2, 2))
    out.sampling.frequency_penalty = static_cast<float>(*value);
  if (const auto value = read_number(body.at("repetition_penalty"), 0, 2, LowEnd::kExcluded))
    out.sampling.repetition_penalty = std::max(static_cast<float>(*value), 1e-7f);
}

void read_bias(const Field& bias, int32_t vocab_size, std::vector<LogitBias>& out) {
  if (!bias.present()) return;
  const JsonValue& map = bias.object();
  if (static_cast<int64_t>(map.members.size()) > kMaxLogitBiases)
    refuse(bias.path(), "at most {} tokens", kMaxLogitBiases);
  for (const auto& [key, value] : map.members) {
    const bool digits = !key.empty() && key.size() <= 9 && (key.size() == 1 || key[0] != '0') &&
                        key.find_first_not_of("0123456789") == key.npos;
    if (!digits || std::stoll(key) >= vocab_size)
      refuse(bias.path(), "'{}' is no id of a vocabulary of {}", key, vocab_size);
    const Field one(&value, bias.path() + "." + key);
    if (const auto number = read_number(one, -100, 100))
      out.push_back({static_cast<int32_t>(std::stoll(key)), static_cast<float>(*number)});
  }
}

void read_stops(const Field& body, int32_t vocab_size, Settings& out) {
  const Field stop = body.at("stop");
  if (stop.present() && stop.json().is_string()) {
    out.stops.push_back(stop.string());
  } else if (stop.present()) {
    for (size_t i = 0; i < stop.list(); ++i) out.stops.push_back(stop.at(i).string());
  }
  if (out.stops.size() > kMaxStops) refuse(stop.path(), "at most {} stop strings", kMaxStops);
  for (const std::string& text : out.stops) {
    if (text.empty() || text.size() > kMaxStopBytes)
      refuse(stop.path(), "stop strings have 1 to {} bytes", kMaxStopBytes);
  }
  const Field ids = body.at("stop_token_ids");
  if (ids.present() && ids.list() > kMaxStopIds) refuse(ids.path(), "at most {} ids", kMaxStopIds);
  for (size_t i = 0; ids.present() && i < ids.list(); ++i)
    out.stop_ids.push_back(static_cast<int32_t>(*read_integer(ids.at(i), 0, vocab_size - 1)));
  out.ignore_eos = body.at("ignore_eos").boolean(false);
  out.include_stop = body.at("include_stop_str_in_output").boolean(false);
}

void read_limits(const Field& body, Api api, Settings& out) {
  constexpr int64_t kMost = int64_t{1} << 40;
  out.max_tokens = read_integer(body.at("max_tokens"), 1, kMost);
  if (api == Api::kChat) {
    const auto completion = read_integer(body.at("max_completion_tokens"), 1, kMost);
    if (completion) out.max_tokens = std::min(out.max_tokens.value_or(kMost), *completion);
  } else if (!out.max_tokens) {
    out.max_tokens = 16;
  }
  out.min_tokens = read_integer(body.at("min_tokens"), 0, kMost).value_or(0);
  out.n = read_integer(body.at("n"), 1, 16).value_or(1);
  if (const auto best = read_integer(body.at("best_of"), 1, 16); best && *best != out.n)
    unsupported("best_of", "must equal n");
  out.deadline_ms = read_integer(body.at("deadline_ms"), 1, kMost).value_or(0);
  out.priority = static_cast<int>(read_integer(body.at("priority"), -2, 2).value_or(0));
}

void read_streaming(const Field& body, Settings& out) {
  out.stream = body.at("stream").boolean(false);
  const Field options = body.at("stream_options");
  if (!options.present()) return;
  if (!out.stream) refuse("stream_options", "is for streams only: set stream");
  out.include_usage = options.at("include_usage").boolean(false);
  out.continuous_usage = options.at("continuous_usage_stats").boolean(false);
}

void read_logprobs(const Field& body, Api api, Settings& out) {
  if (api == Api::kCompletions) {
    const auto count = read_integer(body.at("logprobs"), 0, 20);
    out.logprobs = count.has_value();
    out.echo = body.at("echo").boolean(false);
    out.sampling.top_logprobs = static_cast<int>(count.value_or(0));
    return;
  }
  out.logprobs = body.at("logprobs").boolean(false);
  const auto top = read_integer(body.at("top_logprobs"), 0, 20);
  if (top && !out.logprobs) refuse("top_logprobs", "needs logprobs: true");
  out.sampling.top_logprobs = static_cast<int>(top.value_or(0));
}

// {"type": "content", "content": "text" or a list of text parts}
std::string read_prediction(const Field& prediction) {
  if (!prediction.present()) return {};
  if (prediction.at("type").string() != "content")
    unsupported("prediction.type", "must be content");
  const Field content = prediction.at("content");
  if (content.present() && content.json().is_string()) return content.string();
  std::string text;
  for (size_t i = 0; i < content.list(); ++i) {
    if (content.at(i).at("type").string() != "text")
      unsupported("prediction.content", "has text parts only");
    text += content.at(i).at("text").string();
  }
  return text;
}

}  // namespace

Settings read_settings(const Field& body, Api api, const SamplingParams& sampling,
                       int32_t vocab_size) {
  Settings settings{.sampling = sampling};
  read_sampling(body, settings);
  read_bias(body.at("logit_bias"), vocab_size, settings.logit_bias);
  read_stops(body, vocab_size, settings);
  read_limits(body, api, settings);
  read_streaming(body, settings);
  read_logprobs(body, api, settings);
  settings.sampling.processed_logprobs &= settings.logprobs;  // nothing for those not sent
  settings.return_ids = body.at("return_token_ids").boolean(false);
  settings.speculate = body.at("speculate").boolean(true);
  if (api == Api::kChat) settings.prediction = read_prediction(body.at("prediction"));
  settings.salt = body.at("cache_salt").string_or("");
  for (const char* key : {"user", "safety_identifier", "prompt_cache_key"}) {
    const std::string text = body.at(key).string_or("");
    if (settings.user.empty()) settings.user = text;
  }
  return settings;
}

}  // namespace dsv4
