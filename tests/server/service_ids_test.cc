// Token ids in and out: rendered prompts, prompts of ids, ids of answers.

#include "tests/server/scripted_server.h"
#include "tests/server/service_data.h"

namespace dsv4 {
namespace {

using nlohmann::json;
using test::Answer;
using test::ScriptedServer;
using test::server;
using Ids = std::vector<int32_t>;

ScriptedServer& model() {
  static ScriptedServer one("");
  return one;
}

std::string text_of_ids(const Ids& ids) {
  return server().post("/v1/dsv4/detokenize", {{"tokens", ids}}).json()["text"];
}

std::vector<json> chunks_of(const Answer& answer) {
  std::vector<json> chunks;
  for (size_t at = answer.body.find("data: {"); at != answer.body.npos;
       at = answer.body.find("data: {", at + 1))
    chunks.push_back(
        json::parse(answer.body.substr(at + 6, answer.body.find("\n\n", at) - at - 6)));
  return chunks;
}

TEST(ServiceIds, AChatIsRendered) {
  const json body = {
      {"messages", json::array({test::user("Hi")})}, {"temperature", 0.5}, {"max_tokens", 7}};
  const json rendered = server().post("/v1/chat/completions/render", body).json();
  const json ours = server().post("/v1/dsv4/render", body).json();
  EXPECT_EQ(rendered["token_ids"], ours["ids"]);
  EXPECT_EQ(rendered["prompt"], ours["prompt"]);
  EXPECT_EQ(rendered["model"], "demo");
  EXPECT_TRUE(rendered["request_id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(rendered["sampling_params"]["temperature"], 0.5);
  EXPECT_EQ(rendered["sampling_params"]["max_tokens"], 7);
  // What would be refused is refused in the same words.
  json wrong = body;
  wrong["max_tokens"] = 100'000;
  const Answer refused = server().post("/v1/chat/completions/render", wrong);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["code"], server().chat(wrong).json()["error"]["code"]);
}

TEST(ServiceIds, CompletionsAreRenderedAsAList) {
  const Ids ids = {0, 5, 6};
  const json one = server().post("/v1/completions/render", {{"prompt", ids}}).json();
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0]["token_ids"], json(ids));
  const json two =
      server().post("/v1/completions/render", {{"prompt", {"Hi", "Hello there"}}}).json();
  ASSERT_EQ(two.size(), 2u);
  EXPECT_TRUE(two[1]["prompt"].get<std::string>().ends_with("Hello there"));
  EXPECT_TRUE(two[0]["request_id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(server().post("/v1/completions/render", {{"prompt", 3}}).status, 400);
}

// A router renders a chat and sends the ids: the model goes on as in the chat.
TEST(ServiceIds, RenderedIdsAreThePrompt) {
  const json chat = {{"messages", json::array({test::user("Tell me a story")})},
                     {"temperature", 0},
                     {"max_tokens", 24},
                     {"return_token_ids", true}};
  const json answer = model().chat(chat).json();
  const json rendered = model().post("/v1/chat/completions/render", chat).json();
  EXPECT_EQ(answer["prompt_token_ids"], rendered["token_ids"]);
  const json completion = model()
                              .post("/v1/completions", {{"prompt", rendered["token_ids"]},
                                                        {"temperature", 0},
                                                        {"max_tokens", 24},
                                                        {"return_token_ids", true}})
                              .json();
  const Ids ids = completion["choices"][0]["token_ids"];
  EXPECT_EQ(ids.size(), 24u);
  EXPECT_EQ(answer["choices"][0]["token_ids"], json(ids));
  EXPECT_EQ(text_of_ids(ids), completion["choices"][0]["text"]);
  EXPECT_EQ(completion["choices"][0]["prompt_token_ids"], rendered["token_ids"]);
}

// Chunks have the ids since the chunk before; those of the prompt are in the first.
TEST(ServiceIds, StreamsHaveTheSameIds) {
  for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
    const bool is_chat = path[4] == 'c' && path[5] == 'h';
    json body = {
        {"temperature", 0}, {"seed", 1}, {"max_tokens", 30}, {"n", 2}, {"return_token_ids", true}};
    if (is_chat) {
      body["messages"] = json::array({test::user("Tell me a story")});
    } else {
      body["prompt"] = "Long ago, in a village by the sea,";
      body["stop"] = {" the"};  // tokens whose text waits for a possible stop string
    }
    const json whole = model().post(path, body).json();
    body["stream"] = true;
    std::map<size_t, Ids> ids;
    std::map<size_t, int> prompts;
    for (const json& chunk : chunks_of(model().post(path, body))) {
      for (const json& choice : chunk["choices"]) {
        const size_t index = choice["index"];
        for (const json& id : choice["token_ids"]) ids[index].push_back(id);
        if (choice.contains("prompt_token_ids")) ++prompts[index];
      }
      if (chunk.contains("prompt_token_ids")) {
        EXPECT_EQ(chunk["prompt_token_ids"], whole["prompt_token_ids"]);
        ++prompts[0];
      }
    }
    for (size_t k = 0; k < 2; ++k) {
      EXPECT_EQ(json(ids[k]), whole["choices"][k]["token_ids"]) << path;
      EXPECT_FALSE(ids[k].empty());
    }
    EXPECT_EQ(prompts[0], 1) << path;
  }
}

TEST(ServiceIds, OthersDoNotGetThem) {
  json body = test::chat_body("Hi");
  EXPECT_EQ(server().chat(body).body.find("token_ids"), std::string::npos);
  body["stream"] = true;
  EXPECT_EQ(server().chat(body).body.find("token_ids"), std::string::npos);
  body["return_token_ids"] = "yes";
  EXPECT_EQ(server().chat(body).status, 400);
  const Answer bad = server().post("/v1/completions", {{"prompt", {0, 1 << 30}}});
  EXPECT_EQ(bad.status, 400);
  EXPECT_EQ(bad.json()["error"]["param"], "prompt[1]");
}

}  // namespace
}  // namespace dsv4
