#include "dsv4/server/ollama_info.h"

#include <fmt/chrono.h>

#include <ctime>

#include "dsv4/base/ascii.h"
#include "dsv4/chat/fields.h"
#include "dsv4/chat/sha256.h"
#include "dsv4/server/prepare.h"
#include "dsv4/server/server_log.h"

namespace dsv4 {
namespace {

constexpr const char* kArchitecture = "deepseek4";

Json details() {
  return {{"parent_model", ""},      {"format", "safetensors"},
          {"family", kArchitecture}, {"families", Json::array({kArchitecture})},
          {"parameter_size", ""},    {"quantization_level", ""}};
}

// The digest is of the name: a client only compares it.
Json model_entry(const std::string& name) {
  return {{"name", name},
          {"model", name},
          {"size", 0},
          {"digest", hex_digits(sha256(name))},
          {"details", details()}};
}

}  // namespace

Json ollama_tags(const ServedModel& model) {
  Json list = Json::array();
  for (const std::string& name : model.names) {
    Json entry = model_entry(name);
    entry["modified_at"] = utc_text(model.created);
    list.push_back(std::move(entry));
  }
  return {{"models", std::move(list)}};
}

Json ollama_running(const ServedModel& model) {
  constexpr int64_t kYear = 365 * 86400;
  Json list = Json::array();
  for (const std::string& name : model.names) {
    Json entry = model_entry(name);
    entry["expires_at"] = utc_text(std::time(nullptr) + kYear);
    entry["size_vram"] = 0;
    entry["context_length"] = model.limits.context;
    list.push_back(std::move(entry));
  }
  return {{"models", std::move(list)}};
}

std::string ollama_show(const std::string& text, const ServedModel& model, const std::string&) {
  JsonValue body = parse_json(text, "the body");
  Field(&body, "").object();
  // Older clients say `name`.
  if (body.find("model") == nullptr && body.find("name") != nullptr)
    body.add("model", *body.find("name"));
  model_name(body, model, Api::kOllamaChat);
  return text_of(Json{{"modelfile", ""},
                      {"parameters", ""},
                      {"template", ""},
                      {"license", ""},
                      {"modified_at", utc_text(model.created)},
                      {"details", details()},
                      {"model_info",
                       {{"general.architecture", kArchitecture},
                        {fmt::format("{}.context_length", kArchitecture), model.limits.context},
                        {fmt::format("{}.vocab_size", kArchitecture), model.limits.vocab_size}}},
                      {"capabilities", Json::array({"completion", "tools", "thinking"})}});
}

std::string ollama_loaded(const std::string& model, const std::string& reason, bool is_chat) {
  Json line = {{"model", model}, {"created_at", utc_text(std::time(nullptr))}};
  if (is_chat) {
    line["message"] = {{"role", "assistant"}, {"content", ""}};
  } else {
    line["response"] = "";
  }
  line["done"] = true;
  line["done_reason"] = reason;
  return text_of(line) + "\n";
}

}  // namespace dsv4
