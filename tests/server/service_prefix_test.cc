// Conversations of the bundled model whose beginning is stored: usage says so, answers stay the
// same.

#include <gtest/gtest.h>

#include "tests/server/service_data.h"

namespace dsv4::test {
namespace {

std::string long_text() {
  std::string text = "Tell me of the farm again.";
  for (int i = 0; i < 40; ++i) text += " The mill stood by the river, and the boy had a red kite.";
  return text;
}

int64_t cached_tokens(const Answer& answer) {
  return answer.json().at("usage").at("prompt_tokens_details").at("cached_tokens").get<int64_t>();
}

TEST(ServicePrefix, ASecondTurnIsCached) {
  ScriptedServer server("", {.context = 2048, .max_sequences = 2});
  json body = chat_body(long_text());
  body["temperature"] = 0;
  body["max_tokens"] = 8;
  const Answer first = server.chat(body);
  ASSERT_EQ(first.status, 200) << first.body;
  EXPECT_EQ(cached_tokens(first), 0);
  const Answer again = server.chat(body);
  EXPECT_GE(cached_tokens(again), 256);
  EXPECT_EQ(again.json()["choices"][0]["message"], first.json()["choices"][0]["message"]);

  body["messages"].push_back({{"role", "assistant"}, {"content", "The mill."}});
  body["messages"].push_back(user("And the kite?"));
  EXPECT_GE(cached_tokens(server.chat(body)), 256);
  body["cache_salt"] = "another client";
  EXPECT_EQ(cached_tokens(server.chat(body)), 0);
  const json cache = ask(server.port(), "GET", "/v1/dsv4/cache").json();
  EXPECT_GT(cache["hit_rate"].get<double>(), 0.2);
  EXPECT_GE(cache["ram"]["entries"].get<int>(), 2) << cache;
  EXPECT_GT(cache["ram"]["bytes"].get<int64_t>(), 100'000);
  EXPECT_EQ(server.post("/v1/dsv4/cache/drop", json::object()).status, 200);
  EXPECT_EQ(cached_tokens(server.chat(body)), 0);
  EXPECT_GE(test::metric(server.port(), "dsv4_cache_entries{tier=\"ram\"}"), 1);
  EXPECT_EQ(test::metric(server.port(), "dsv4_prefix_hits_total"),
            cache["cached_tokens"].get<double>());
}

// Requests of another salt share nothing, whatever their API.
TEST(ServicePrefix, ASaltSeparatesInEveryApi) {
  ScriptedServer server("", {.context = 1024, .max_sequences = 2});
  const std::string text = long_text().substr(0, 1300);
  const json messages = json::array({user(text)});
  const std::vector<std::pair<const char*, json>> apis = {
      {"/v1/chat/completions", {{"messages", messages}, {"max_tokens", 4}}},
      {"/v1/messages", {{"messages", messages}, {"max_tokens", 4}}},
      {"/v1/responses", {{"input", text}, {"max_output_tokens", 4}}}};
  for (const auto& [path, request] : apis) {
    json body = request;
    const auto computed = [&, &api = path](const char* salt) {
      const auto before = test::ask(server.port(), "GET", "/v1/dsv4/cache").json();
      body["cache_salt"] = std::string(api) + salt;
      EXPECT_EQ(server.post(api, body).status, 200) << api;
      const auto after = test::ask(server.port(), "GET", "/v1/dsv4/cache").json();
      return after["computed_tokens"].get<int64_t>() - before["computed_tokens"].get<int64_t>();
    };
    const int64_t whole = computed("a");
    EXPECT_GT(whole, 256) << path;
    EXPECT_LT(computed("a"), 256) << path;
    EXPECT_EQ(computed("b"), whole) << path;
  }
}

// Two conversations that share nothing but the system prompt, which ends between two checkpoints of
// a long prompt.
TEST(ServicePrefix, ASystemPromptIsShared) {
  ScriptedServer server("", {.context = 2048, .max_sequences = 2});
  const auto about = [&](const char* name) {
    std::string question = std::string(name) + " asks:";
    for (int i = 0; i < 40; ++i) question += std::string(" What did ") + name + " say of the mill?";
    json body = chat_body(question);
    body["messages"].insert(body["messages"].begin(),
                            json{{"role", "system"}, {"content", long_text()}});
    body["max_tokens"] = 4;
    return cached_tokens(server.chat(body));
  };
  EXPECT_EQ(about("Mira"), 0);
  EXPECT_GE(about("Tom"), 256);
}

}  // namespace
}  // namespace dsv4::test
