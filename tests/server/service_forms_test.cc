// Unusual but legal forms of requests, and the answers to those that are neither: absolute targets,
// blank lines, encodings, expectations, TLS, clients that are turned away.

#include <gtest/gtest.h>

#include "tests/server/service_data.h"

namespace dsv4::test {
namespace {

Answer answer_to(uint16_t port, std::string_view bytes) {
  Socket socket(port);
  socket.send(bytes);
  std::string received;
  while (!parse_answer(received).complete && socket.receive(received, 5000)) {
  }
  return parse_answer(received);
}

Answer post_with(std::string_view headers, std::string_view path = "/v1/chat/completions") {
  return ask(server().port(), "POST", path, chat_body("Hi").dump(), headers);
}

// RFC 9112, 3.2.2: what the target names counts, not the Host header.
TEST(ServiceForms, AbsoluteTargets) {
  const auto status = [](const std::string& target, const std::string& host) {
    return answer_to(server().port(), "GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
        .status;
  };
  EXPECT_EQ(status("http://localhost:8000/v1/models", "localhost:8000"), 200);
  EXPECT_EQ(status("http://localhost/health?x=1", "whatever.example"), 200);
  EXPECT_EQ(status("http://evil.example/health", "localhost"), 403);
  EXPECT_EQ(status("http://localhost", "localhost"), 200) << "the page";
  EXPECT_EQ(status("ftp://localhost/health", "localhost"), 400);
}

TEST(ServiceForms, BlankLinesBeforeARequest) {
  const std::string request = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
  EXPECT_EQ(answer_to(server().port(), "\r\n" + request).status, 200);
  EXPECT_EQ(answer_to(server().port(), "\r\n\r\n" + request).status, 200);
  EXPECT_EQ(answer_to(server().port(), "\r\n\r\n\r\n" + request).status, 400);
  Socket socket(server().port());
  socket.send(request + "\r\n" + request);
  std::string bytes;
  for (int i = 0; i < 2; ++i) {
    size_t used = 0;
    while (parse_answer(bytes, &used).complete == false) ASSERT_TRUE(socket.receive(bytes));
    bytes.erase(0, used);
  }
}

TEST(ServiceForms, BodiesAreUtf8WithoutCompression) {
  EXPECT_EQ(post_with("Content-Encoding: identity\r\n").status, 200);
  const Answer gzip = post_with("Content-Encoding: gzip\r\n");
  EXPECT_EQ(gzip.status, 415);
  EXPECT_NE(gzip.body.find("Content-Encoding 'gzip'"), std::string::npos) << gzip.body;
  const auto typed = [](const std::string& type) {
    const std::string body = chat_body("Hi").dump();
    return answer_to(
               server().port(),
               "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: " + type +
                   "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body)
        .status;
  };
  EXPECT_EQ(typed("application/json; charset=utf-8"), 200);
  EXPECT_EQ(typed("application/json; charset=\"UTF-8\"; x=y"), 200);
  EXPECT_EQ(typed("application/json; charset=utf-16"), 415);
}

TEST(ServiceForms, ExpectationsThatAreNotMet) {
  EXPECT_EQ(post_with("Expect: 100-continue\r\n").status, 100);
  EXPECT_EQ(post_with("Expect: 200-ok\r\n").status, 417);
}

// The first bytes of a ClientHello get an answer at once, and one line of the log says why.
TEST(ServiceForms, TlsIsAnswered) {
  const Answer answer = answer_to(server().port(), std::string_view("\x16\x03\x01\x02\x00\x01", 6));
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find("without TLS"), std::string::npos) << answer.body;
}

// A client that still sends its body reads why it was turned away.
TEST(ServiceForms, ARefusedClientReadsTheAnswer) {
  ScriptOptions options;
  options.service.http.max_connections = 1;
  options.service.http.reserved_connections = 0;
  ScriptedServer small(kServiceScript, options);
  const std::string body(3 << 20, ' ');
  const std::string text = request_text("POST", "/v1/chat/completions", body);
  for (int i = 0; i < 50; ++i) {  // the constructor's own connections may not be closed yet
    Socket held(small.port());
    held.send("GET /health HTTP/1.1\r\n");
    for (int k = 0; k < 5; ++k) {
      Socket refused(small.port());
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_TRUE(refused.send(text)) << "the server closed while the client sent";
      std::string bytes;
      while (!parse_answer(bytes).complete && refused.receive(bytes, 5000)) {
      }
      const Answer answer = parse_answer(bytes);
      if (answer.status == 408 || answer.status == 400) continue;
      ASSERT_EQ(answer.status, 503);
      return;
    }
  }
  FAIL() << "no connection was refused";
}

TEST(ServiceForms, SmallRoutesOfTheApis) {
  const uint16_t port = server().port();
  EXPECT_EQ(ask(port, "GET", "/v1/models/").json()["data"].size(), 2u);
  EXPECT_EQ(ask(port, "GET", "/v1/models").json()["data"][0]["created_at"], "2023-11-14T22:13:20Z");
  const json wrong = ask(port, "POST", "/v1/messages/batches", "{}").json();
  EXPECT_EQ(wrong["type"], "error") << "Anthropic's form";
  EXPECT_EQ(wrong["error"]["type"], "not_found_error");
  const json counted = server().post("/v1/responses/input_tokens", {{"input", "Hello"}}).json();
  EXPECT_EQ(counted["object"], "response.input_tokens");
  const json asked = {{"messages", json::array({user("Hello")})}};
  EXPECT_EQ(counted["input_tokens"],
            server().post("/v1/messages/count_tokens", asked).json()["input_tokens"]);
}

TEST(ServiceForms, WhatTheServerIsNeedsAKeyWhereThereAreKeys) {
  ScriptOptions options;
  options.service.api_keys = {{"test", "a-secret-key"}};
  ScriptedServer keyed(kServiceScript, options);
  for (const char* path : {"/version", "/metrics"}) {
    EXPECT_EQ(ask(server().port(), "GET", path).status, 200) << path;
    EXPECT_EQ(ask(keyed.port(), "GET", path).status, 401) << path;
    EXPECT_EQ(ask(keyed.port(), "GET", path, "", "x-api-key: a-secret-key\r\n").status, 200);
  }
  for (const char* path : {"/health", "/ready", "/"})
    EXPECT_EQ(ask(keyed.port(), "GET", path).status, 200) << path;
}

}  // namespace
}  // namespace dsv4::test
