// What bounds the memory and the time of requests that are not computed yet. The engine is
// scripted.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>

#include "tests/server/service_data.h"

namespace dsv4 {
namespace {

using nlohmann::json;
using test::Answer;
using test::ask;
using test::chat_body;
using test::ScriptedServer;
using test::ScriptOptions;
using test::Socket;

const char* const kScript = R"({"output": "Hello."})";
const std::string kHead =
    "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";

Answer receive(Socket& socket) {
  std::string bytes;
  while (!test::parse_answer(bytes).complete && socket.receive(bytes)) {
  }
  return test::parse_answer(bytes);
}

// Bytes of the addresses of this process, which the server is part of; touched or not.
size_t virtual_bytes() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

TEST(ServiceLimits, AllBodiesShareABudget) {
  ScriptOptions options;
  options.service.http.max_body_bytes = options.service.http.max_body_memory = 1 << 20;
  ScriptedServer small(kScript, options);
  const std::string most(700'000, ' ');
  for (const std::string& head : {kHead + "Content-Length: 1000000\r\n\r\n",
                                  kHead + "Transfer-Encoding: chunked\r\n\r\naae60\r\n"}) {
    Socket second(small.port());
    {
      Socket first(small.port());
      ASSERT_TRUE(first.send(head + most));
      // Each of these answers follows a turn of the I/O thread, which reads 64 KiB of the body.
      for (int i = 0; i < 50; ++i) ask(small.port(), "GET", "/health");
      // Now that the first body has arrived, a second one finds no memory.
      Answer refused;
      for (int i = 0; i < 20 && refused.status != 503; ++i) {
        Socket other(small.port());
        other.send(kHead + "Content-Length: 600000\r\n\r\n" + most.substr(0, 599'999));
        std::string bytes;
        while (!test::parse_answer(bytes).complete && other.receive(bytes, 2000)) {
        }
        refused = test::parse_answer(bytes);
      }
      EXPECT_EQ(refused.status, 503);
      EXPECT_EQ(refused.headers["retry-after"], "1");
      EXPECT_EQ(ask(small.port(), "GET", "/health").status, 200);
    }
    // The first client has left, and its bytes are free again.
    json body = chat_body("Hi");
    body["metadata"] = {{"a", most}};
    Answer served;
    for (int i = 0; i < 100 && served.status != 200; ++i)
      served = small.post("/v1/chat/completions", body);
    EXPECT_EQ(served.status, 200);
  }
}

TEST(ServiceLimits, ALengthSetsNothingAside) {
  ScriptOptions options;
  options.service.http.max_body_bytes = size_t{8} << 30;
  ScriptedServer roomy(kScript, options);
  const size_t before = virtual_bytes();
  for (const char* length : {"Content-Length: 8000000000\r\n\r\n{",
                             "Transfer-Encoding: chunked\r\n\r\n1dcd65000\r\n{"}) {
    Socket socket(roomy.port());
    ASSERT_TRUE(socket.send(kHead + length));
    std::string none;
    EXPECT_FALSE(socket.receive(none, 300)) << none;
    EXPECT_LT(virtual_bytes(), before + (size_t{1} << 30)) << length;
  }
}

TEST(ServiceLimits, ValuesOfABodyAreCounted) {
  std::string zeros = "[0";
  for (int64_t i = 1; i < kMaxJsonValues; ++i) zeros += ",0";
  const Answer answer =
      ask(test::server().port(), "POST", "/v1/completions", "{\"prompt\": " + zeros + "]}");
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find("more than 2097152 values"), answer.body.npos) << answer.body;
}

// The last prompt is wrong, and is not reached.
TEST(ServiceLimits, ChoicesAreCountedBeforePromptsAreRead) {
  json prompts = json::array();
  for (int i = 0; i < 40; ++i) prompts.push_back("x");
  prompts.push_back(json::object());
  json body = {{"prompt", prompts}, {"n", 4}};
  const Answer answer = test::server().post("/v1/completions", body);
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find("at most 128"), answer.body.npos) << answer.body;
}

// An answer repeats fields of its request: 100,000 keys that are compared with each other would
// take 20 s.
TEST(ServiceLimits, RepeatedFieldsTakeLinearTime) {
  std::string keys = R"("k":"")";
  for (int i = 0; i < 100'000; ++i) keys += fmt::format(R"(,"k{}":"")", i);
  const std::clock_t begin = std::clock();  // of all threads
  const Answer answer = ask(test::server().port(), "POST", "/v1/responses",
                            R"({"input":"a","max_output_tokens":16,"metadata":{)" + keys + "}}");
  EXPECT_EQ(answer.status, 200) << answer.body.substr(0, 300);
  EXPECT_NE(answer.body.find(R"("k99999":"")"), answer.body.npos);
  EXPECT_LT((std::clock() - begin) / CLOCKS_PER_SEC, 8);
}

// Tokenizing it would take a worker seconds.
TEST(ServiceLimits, ATextThatNeverFitsIsNotTokenized) {
  json chat = chat_body(""), messages = chat;
  chat["messages"][0]["content"] = std::string(8 << 20, 'x');
  messages["messages"] = chat["messages"];
  const json completion = {{"prompt", chat["messages"][0]["content"]}};
  const std::vector<std::pair<const char*, json>> requests = {
      {"/v1/chat/completions", chat}, {"/v1/messages", messages}, {"/v1/completions", completion}};
  for (const auto& [path, body] : requests) {
    const Answer answer = test::server().post(path, body);
    EXPECT_EQ(answer.status, 400);
    EXPECT_NE(answer.body.find("context is 4096 tokens; the prompt has "), answer.body.npos);
    EXPECT_NE(answer.body.find(" or more"), answer.body.npos) << "it was tokenized";
  }
}

TEST(ServiceLimits, BodiesThatWaitForAWorkerAreCounted) {
  ScriptOptions options{.context = 1 << 20};
  options.service.max_preparing = 2;
  ScriptedServer small(kScript, options);
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(i * 7919) + " ";
  const std::string bytes =
      test::request_text("POST", "/v1/dsv4/tokenize", json{{"prompt", text}}.dump());
  std::vector<std::unique_ptr<Socket>> sockets;
  for (int i = 0; i < 12; ++i) {
    sockets.push_back(std::make_unique<Socket>(small.port()));
    ASSERT_TRUE(sockets.back()->send(bytes));
  }
  int refused = 0, read = 0;
  for (const auto& socket : sockets) {
    const Answer answer = receive(*socket);
    refused += answer.status == 429 && answer.headers.at("retry-after") == "1";
    read += answer.status == 200;
  }
  EXPECT_EQ(refused + read, 12);
  EXPECT_GE(read, 2);
  EXPECT_GE(refused, 1);
  EXPECT_EQ(small.post("/v1/chat/completions", chat_body("Hi")).status, 200);
}

}  // namespace
}  // namespace dsv4
