// Speculation as clients and operators see it: answers are those without, byte for byte, and the
// numbers add up.

#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "tests/server/scripted_server.h"

namespace dsv4 {
namespace {

using test::Answer;
using test::json;

std::unique_ptr<EnginePort> demo_engine(const EngineLimits& limits, Speculate speculate) {
  static const auto model = std::make_shared<const Model>(Model::load("models/demo"));
  return model_engine(model, {.deterministic = true,
                              .max_tokens = limits.context,
                              .max_sequences = limits.max_sequences,
                              .max_batch_tokens = 256,
                              .prefix_checkpoints = 4,
                              .max_scored_tokens = 16,
                              .speculate = speculate,
                              .draft_tokens = 4});  // whatever the steps of a busy machine take
}

test::ScriptOptions options(Speculate speculate) {
  return {.context = 2048, .engine = [speculate](const EngineLimits& limits) {
            return demo_engine(limits, speculate);
          }};
}

// Without what differs from answer to answer anyway.
json comparable(json value) {
  if (value.is_object()) {
    for (const char* key : {"id", "created", "usage", "system_fingerprint"}) value.erase(key);
  }
  if (value.is_structured()) {
    for (auto& item : value) item = comparable(std::move(item));
  }
  return value;
}

// One event of a stream after the other.
std::vector<json> events_of(const Answer& answer) {
  std::vector<json> events;
  std::istringstream text(answer.body);
  for (std::string line; std::getline(text, line);) {
    constexpr std::string_view kData = "data: ";
    if (!line.starts_with(kData) || line == "data: [DONE]") continue;
    events.push_back(comparable(json::parse(line.substr(kData.size()))));
  }
  return events;
}

// The values of /metrics by name and labels.
std::map<std::string, double> metrics_of(test::ScriptedServer& server) {
  std::map<std::string, double> values;
  std::istringstream text(test::ask(server.port(), "GET", "/metrics").body);
  for (std::string line; std::getline(text, line);) {
    const size_t space = line.rfind(' ');
    if (line.empty() || line[0] == '#' || space == line.npos) continue;
    values[line.substr(0, space)] = std::stod(line.substr(space + 1));
  }
  return values;
}

// The sum of a metric over its labels.
double sum(const std::map<std::string, double>& values, const std::string& name) {
  double sum = 0;
  for (const auto& [key, value] : values)
    if (key == name || key.starts_with(name + "{")) sum += value;
  return sum;
}

const char kText[] =
    "The miller had a daughter, and the daughter had a cat. The cat sat by the mill and waited for "
    "the miller. The miller had a daughter, and the daughter had a cat.";

const json kTool = {
    {"type", "function"},
    {"function",
     {{"name", "get_weather"},
      {"strict", true},
      {"parameters",
       {{"type", "object"},
        {"properties", {{"location", {{"type", "string"}}}, {"unit", {{"enum", {"celsius"}}}}}},
        {"required", {"location", "unit"}},
        {"additionalProperties", false}}}}}};

std::vector<std::pair<std::string, json>> requests() {
  const json message = {{{"role", "user"}, {"content", kText}}};
  const auto chat = [&](json more) {
    json body = {{"messages", message}, {"max_tokens", 60}, {"seed", 3}, {"temperature", 1}};
    body.update(more);
    return body;
  };
  const auto complete = [&](json more) {
    json body = {{"prompt", kText}, {"max_tokens", 80}, {"seed", 5}, {"temperature", 0}};
    body.update(more);
    return body;
  };
  return {
      {"/v1/completions", complete(json::object())},
      {"/v1/completions",
       complete({{"logprobs", 3}, {"temperature", 1.2}, {"frequency_penalty", 1}})},
      {"/v1/completions", complete({{"stop", {"daughter", "the m", " cat"}}})},
      {"/v1/completions", complete({{"n", 3}, {"temperature", 1}, {"logprobs", 0}})},
      {"/v1/completions", complete({{"min_tokens", 70}, {"max_tokens", 73}})},
      {"/v1/chat/completions", chat({{"logprobs", true}, {"top_logprobs", 2}})},
      {"/v1/chat/completions", chat({{"tools", {kTool}}, {"tool_choice", "required"}})},
      {"/v1/chat/completions",
       chat({{"response_format",
              {{"type", "json_schema"},
               {"json_schema",
                {{"name", "x"},
                 {"schema",
                  {{"type", "object"},
                   {"properties", {{"the_name_of_it", {{"type", "integer"}}}}},
                   {"required", {"the_name_of_it"}},
                   {"additionalProperties", false}}}}}}}})},
      {"/v1/chat/completions", chat({{"thinking", {{"type", "enabled"}}}})},
  };
}

TEST(ServiceSpeculation, AnswersAreThoseWithout) {
  test::ScriptedServer plain("", options(Speculate::kOff)), fast("", options(Speculate::kLookup));
  for (const auto& [path, body] : requests()) {
    const Answer want = plain.post(path, body), got = fast.post(path, body);
    ASSERT_EQ(want.status, 200) << want.body;
    EXPECT_EQ(comparable(got.json()), comparable(want.json())) << body;
    json usage = got.json()["usage"], plain_usage = want.json()["usage"];
    EXPECT_EQ(usage["completion_tokens"], plain_usage["completion_tokens"]) << body;
    if (body.contains("n")) continue;
    json streamed = body;
    streamed["stream"] = true;
    const std::vector<json> events = events_of(plain.post(path, streamed));
    EXPECT_GT(events.size(), 5u);
    EXPECT_EQ(events_of(fast.post(path, streamed)), events) << body;
  }
  EXPECT_GT(sum(metrics_of(fast), "dsv4_spec_accepted_total"), 20);
  EXPECT_EQ(sum(metrics_of(plain), "dsv4_spec_drafted_total"), 0);
}

TEST(ServiceSpeculation, MetricsAddUp) {
  test::ScriptedServer server("", options(Speculate::kLookup));
  for (const auto& [path, body] : requests()) ASSERT_EQ(server.post(path, body).status, 200);
  const auto values = metrics_of(server);
  const double rounds = sum(values, "dsv4_spec_rounds_total"),
               drafted = sum(values, "dsv4_spec_drafted_total"),
               accepted = sum(values, "dsv4_spec_accepted_total");
  EXPECT_GT(rounds, 10);
  EXPECT_LT(accepted, drafted);
  EXPECT_GT(values.at("dsv4_spec_accepted_total{source=\"grammar\"}"), 0);
  EXPECT_EQ(accepted, sum(values, "dsv4_spec_accepted_position_total"));
  // Each round gives what holds of its drafts, and one token.
  EXPECT_EQ(sum(values, "dsv4_spec_tokens_total"), rounds + accepted);
  EXPECT_EQ(sum(values, "dsv4_spec_round_tokens_total"), rounds);
  double tokens = 0;
  for (int n = 1; n <= 8; ++n)
    tokens += n * values.at("dsv4_spec_round_tokens_total{tokens=\"" + std::to_string(n) + "\"}");
  EXPECT_EQ(tokens, rounds + accepted);
}

TEST(ServiceSpeculation, APredictionIsCountedInTheUsage) {
  test::ScriptedServer server("", options(Speculate::kLookup));
  json body = {{"messages", {{{"role", "user"}, {"content", "Hello! Who are you?"}}}},
               {"max_tokens", 40},
               {"temperature", 0}};
  const json first = server.chat(body).json();
  const std::string text = first["choices"][0]["message"]["content"];
  const auto details = [](const json& answer) {
    return answer["usage"]["completion_tokens_details"];
  };
  EXPECT_EQ(details(first)["accepted_prediction_tokens"], 0);
  EXPECT_EQ(details(first)["rejected_prediction_tokens"], 0);
  body["prediction"] = {{"type", "content"}, {"content", text}};
  const json second = server.chat(body).json();
  EXPECT_EQ(second["choices"][0]["message"]["content"], text);
  EXPECT_GT(details(second)["accepted_prediction_tokens"], 3);
  body["prediction"]["content"] = {{{"type", "text"}, {"text", text.substr(0, text.size() / 2)}},
                                   {{"type", "text"}, {"text", " purple elephants, forty two"}}};
  const json third = server.chat(body).json();
  EXPECT_EQ(third["choices"][0]["message"]["content"], text);
  EXPECT_GT(details(third)["rejected_prediction_tokens"], 0);
  body["speculate"] = false;
  const json off = server.chat(body).json();
  EXPECT_EQ(off["choices"][0]["message"]["content"], text);
  EXPECT_EQ(details(off)["rejected_prediction_tokens"], 0);
  body["prediction"] = {{"type", "other"}, {"content", "x"}};
  EXPECT_EQ(server.chat(body).status, 400);
}

}  // namespace
}  // namespace dsv4
