// Random chat requests that are valid, with texts that spell markers wherever a client can write.

#pragma once

#include "tests/chat/chat_data.h"

namespace dsv4::test {

namespace detail {

using Json = nlohmann::ordered_json;

inline Json random_content(Rng& rng) {
  if (rng.below(5) > 0) return random_text(rng);
  Json parts = Json::array();
  for (int64_t n = rng.below(3); n > 0; --n)
    parts.push_back({{"type", "text"}, {"text", random_text(rng)}});
  return parts;
}

// Calls and, in another order, their results.
inline void add_calls(Rng& rng, Json& message, std::vector<Json>& results) {
  const int64_t count = 1 + rng.below(3);
  for (int64_t i = 0; i < count; ++i) {
    Json arguments = Json::object();
    for (int64_t n = rng.below(3); n > 0; --n) arguments[random_text(rng)] = random_value(rng);
    const std::string text = rng.below(8) == 0 ? random_text(rng) : arguments.dump();
    const std::string id = fmt::format("c{}", i);
    message["tool_calls"].push_back(
        {{"id", id}, {"function", {{"name", random_text(rng)}, {"arguments", text}}}});
    const Json result = {{"role", "tool"}, {"tool_call_id", id}, {"content", random_content(rng)}};
    results.insert(rng.below(2) == 0 ? results.begin() : results.end(), result);
  }
}

}  // namespace detail

inline JsonValue random_request(Rng& rng) {
  using detail::Json;
  Json body = {{"messages", Json::array()}};
  for (int64_t n = 1 + rng.below(6); n > 0; --n) {
    static const char* const kRoles[] = {"user",      "user",      "system",
                                         "assistant", "assistant", "latest_reminder"};
    const std::string role = kRoles[rng.below(6)];
    Json message = {{"role", role}, {"content", detail::random_content(rng)}};
    std::vector<Json> results;
    if (role == "assistant" && rng.below(2) == 0) message["reasoning_content"] = random_text(rng);
    if (role == "assistant" && rng.below(2) == 0) detail::add_calls(rng, message, results);
    body["messages"].push_back(message);
    for (const Json& result : results) body["messages"].push_back(result);
  }
  if (rng.below(2) == 0) {
    for (int64_t i = 1 + rng.below(2); i > 0; --i) {
      body["tools"].push_back({{"type", "function"},
                               {"function",
                                {{"name", fmt::format("f｜DSML｜{}", i)},
                                 {"description", random_text(rng)},
                                 {"parameters", {{random_text(rng), random_value(rng)}}}}}});
    }
  }
  if (rng.below(3) == 0) {
    body["response_format"] = {{"type", "json_schema"},
                               {"json_schema", {{"schema", {{random_text(rng), 1}}}}}};
  }
  if (rng.below(2) == 0) body["thinking"] = {{"type", "disabled"}};
  return parse_json(body.dump(), "random request");
}

// Every spelled marker replaced by a word; the shape of the request stays.
inline std::string without_markers(std::string text) {
  for (size_t i = 0; i < kNumMarkers; ++i) {
    const std::string_view spelled = spelling(static_cast<Marker>(i));
    for (size_t at = text.find(spelled); at != text.npos; at = text.find(spelled, at))
      text.replace(at, spelled.size(), fmt::format("m{}", i));
  }
  return text;
}

inline JsonValue without_markers(JsonValue value) {
  if (value.is_string()) value.text = without_markers(value.text);
  for (JsonValue& item : value.items) item = without_markers(std::move(item));
  for (auto& [key, member] : value.members) {
    key = without_markers(key);
    member = without_markers(std::move(member));
  }
  return value;
}

}  // namespace dsv4::test
