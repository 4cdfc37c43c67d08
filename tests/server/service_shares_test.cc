// What one client leaves to the others: places of the engine, places in the queues, workers. The
// engine is scripted, and what is asserted is an order, not a time.

#include <gtest/gtest.h>

#include "tests/server/service_data.h"

namespace dsv4::test {
namespace {

std::unique_ptr<Socket> start(uint16_t port, const json& body, std::string_view headers = "",
                              std::string_view path = "/v1/chat/completions") {
  auto socket = std::make_unique<Socket>(port);
  EXPECT_TRUE(socket->send(request_text("POST", path, body.dump(), headers)));
  return socket;
}

Answer receive(Socket& socket) {
  std::string bytes;
  while (!parse_answer(bytes).complete && socket.receive(bytes)) {
  }
  return parse_answer(bytes);
}

// Whether something of the answer has arrived.
bool answered(Socket& socket) {
  std::string bytes;
  return socket.receive(bytes, 0);
}

bool becomes(uint16_t port, const std::string& name, double value) {
  for (int i = 0; i < 2000; ++i) {
    if (metric(port, name) == value) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

std::string from(const std::string& address) {
  return "X-Forwarded-For: " + address + "\r\n";
}

ScriptOptions behind_a_proxy() {
  ScriptOptions options{.max_sequences = 1};
  options.service.http.trusted_proxies = {"127.0.0.1"};
  return options;
}

// Six texts that take a worker long do not stand before the body of a chat.
TEST(ServiceShares, TextsDoNotHoldUpChats) {
  ScriptOptions options{.context = 1 << 22};
  ScriptedServer roomy(kServiceScript, options);
  const json heavy = {{"prompt", std::string(3 << 20, 'a')}};
  std::vector<std::unique_ptr<Socket>> texts;
  for (int i = 0; i < 6; ++i) texts.push_back(start(roomy.port(), heavy, "", "/v1/dsv4/tokenize"));
  EXPECT_EQ(roomy.chat(chat_body("Hi")).status, 200);
  EXPECT_FALSE(answered(*texts.back())) << "the chat came after all of them";
  for (const auto& socket : texts) EXPECT_EQ(receive(*socket).status, 200);
}

TEST(ServiceShares, TextsAreBounded) {
  ScriptedServer small(kServiceScript, {.context = 64});
  std::string words;
  for (int i = 0; i < 100; ++i) words += " one two";
  const Answer longer = small.post("/v1/dsv4/tokenize", {{"prompt", words}});
  EXPECT_EQ(longer.status, 400);
  EXPECT_EQ(longer.json()["error"]["code"], "context_length_exceeded") << longer.body;
  for (const char* path : {"/v1/dsv4/tokenize", "/v1/dsv4/render", "/v1/messages/count_tokens"}) {
    const Answer large = ask(small.port(), "POST", path, std::string(17 << 20, ' '));
    EXPECT_EQ(large.status, 413) << path;
  }
}

// 16 choices that run long: another request begins at once, and two can.
TEST(ServiceShares, ARequestLeavesPlaces) {
  ScriptedServer one(kServiceScript);  // four places
  json many = {{"prompt", "slow"}, {"n", 16}, {"max_tokens", 2000}, {"stream", true}};
  const auto held = start(one.port(), many, "", "/v1/completions");
  EXPECT_TRUE(becomes(one.port(), "dsv4_requests_running", 3));
  json quick = chat_body("Hi");
  quick["deadline_ms"] = 20'000;
  EXPECT_EQ(one.chat(quick).status, 200);
}

// The first address has nineteen requests in the queue when the others come.
TEST(ServiceShares, AddressesShareFairly) {
  ScriptedServer proxied(R"({"output": "w ", "repeat": 10, "step_ms": 10})", behind_a_proxy());
  std::vector<std::unique_ptr<Socket>> many;
  for (int i = 0; i < 20; ++i)
    many.push_back(start(proxied.port(), chat_body("Hi"), from("203.0.113.1")));
  EXPECT_TRUE(becomes(proxied.port(), "dsv4_requests_waiting", 19));
  const auto one = start(proxied.port(), chat_body("Hi"), from("203.0.113.2"));
  EXPECT_EQ(receive(*one).status, 200);
  size_t before = 0;
  for (const auto& socket : many) before += answered(*socket);
  EXPECT_LT(before, 10u) << "it waited for those that came before it";
}

TEST(ServiceShares, OneClientDoesNotFillTheQueue) {
  ScriptOptions options = behind_a_proxy();
  options.service.max_queue = 4;
  ScriptedServer proxied(kServiceScript, options);
  json slow = chat_body("slow");
  slow["stream"] = true;
  std::vector<std::unique_ptr<Socket>> held;
  held.push_back(start(proxied.port(), slow, from("203.0.113.1")));
  EXPECT_TRUE(becomes(proxied.port(), "dsv4_requests_running", 1));
  for (int i = 0; i < 3; ++i) held.push_back(start(proxied.port(), slow, from("203.0.113.1")));
  EXPECT_TRUE(becomes(proxied.port(), "dsv4_requests_waiting", 3));
  const auto status = [&](const std::string& address) {
    return receive(*start(proxied.port(), chat_body("slow"), from(address))).status;
  };
  EXPECT_EQ(status("203.0.113.1"), 429);
  EXPECT_EQ(ask(proxied.port(), "GET", "/ready").status, 200) << "others find a place";
  held.push_back(start(proxied.port(), slow, from("203.0.113.2")));
  EXPECT_TRUE(becomes(proxied.port(), "dsv4_requests_waiting", 4));
  EXPECT_EQ(status("203.0.113.3"), 429);
}

TEST(ServiceShares, AnOverloadedServerSaysSo) {
  ScriptOptions options{.max_sequences = 1};
  options.service.max_queue = 1;
  ScriptedServer small(kServiceScript, options);
  json slow = chat_body("slow");
  slow["stream"] = true;
  {
    const auto first = start(small.port(), slow);
    EXPECT_TRUE(becomes(small.port(), "dsv4_requests_running", 1));
    EXPECT_EQ(ask(small.port(), "GET", "/ready").status, 200);
    const auto second = start(small.port(), slow);
    EXPECT_TRUE(becomes(small.port(), "dsv4_requests_waiting", 1));
    const Answer ready = ask(small.port(), "GET", "/ready");
    EXPECT_EQ(ready.status, 503);
    EXPECT_EQ(ready.json()["status"], "overloaded");
    EXPECT_EQ(ready.json()["waiting"], 1);
    EXPECT_EQ(metric(small.port(), "dsv4_overloaded"), 1);
    EXPECT_EQ(metric(small.port(), "dsv4_ready"), 0);
    EXPECT_EQ(small.chat(chat_body("Hi")).status, 429);
    EXPECT_EQ(ask(small.port(), "GET", "/health").status, 200);
  }
  EXPECT_TRUE(becomes(small.port(), "dsv4_overloaded", 0));
  EXPECT_EQ(ask(small.port(), "GET", "/ready").status, 200);
}

}  // namespace
}  // namespace dsv4::test
