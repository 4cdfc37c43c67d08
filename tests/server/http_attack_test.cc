// What hostile clients send over raw sockets. Each case is bounded in bytes and time, stays on
// loopback, and ends with a server that still answers /health.

#include <gtest/gtest.h>

#include "tests/server/scripted_server.h"

namespace dsv4::test {
namespace {

ScriptedServer& server() {
  static ScriptOptions options = [] {
    ScriptOptions small;
    small.service.http.max_body_bytes = 1 << 20;
    small.service.http.head_timeout = std::chrono::milliseconds(500);
    small.service.http.body_timeout = std::chrono::milliseconds(500);
    small.service.http.idle_timeout = std::chrono::milliseconds(500);
    return small;
  }();
  static ScriptedServer one(R"({"match": "slow", "output": "tick ", "repeat": 3000, "step_ms": 20}
{"output": "Hello."})",
                            options);
  return one;
}

// The answer to these bytes; status 0 where the server closed without one.
Answer answer_to(std::string_view bytes) {
  Socket socket(server().port());
  socket.send(bytes);
  std::string received;
  while (!parse_answer(received).complete && socket.receive(received, 5000)) {
  }
  return parse_answer(received);
}

bool metrics_become(const std::string& line) {
  for (int i = 0; i < 200; ++i) {
    if (ask(server().port(), "GET", "/metrics").body.find(line) != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

class HttpAttack : public testing::Test {
 protected:
  void TearDown() override {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(ask(server().port(), "GET", "/health").status, 200);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  }
};

TEST_F(HttpAttack, SmugglingPairsAreRefusedAndTheConnectionEnds) {
  const std::string head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
  const std::string hidden = "0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (const char* framing :
       {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nContent-Length: 0\r\n", "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: xchunked\r\n", "Transfer-Encoding:\tchunked\r\nContent-Length: 5\r\n",
        "X: a\r\n Transfer-Encoding: chunked\r\n", "Content-Length: 5\nX: y\r\n"}) {
    Socket socket(server().port());
    socket.send(head + framing + "\r\n" + hidden);
    const std::string all = socket.receive_all(5000);
    EXPECT_TRUE(all.starts_with("HTTP/1.1 400")) << framing << all;
    EXPECT_EQ(all.find("HTTP/1.1", 8), all.npos) << "a second answer: " << framing << all;
  }
}

TEST_F(HttpAttack, HeadersHaveLimits) {
  std::string many = "GET /health HTTP/1.1\r\nHost: localhost\r\n";
  for (int i = 0; i < 100'000 && many.size() < 4'000'000; ++i) many += "X-A: b\r\n";
  EXPECT_EQ(answer_to(many + "\r\n").status, 431);
  EXPECT_EQ(answer_to("GET /" + std::string(100'000, 'a') + " HTTP/1.1\r\n\r\n").status, 414);
  EXPECT_EQ(
      answer_to("GET / HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(20'000, 'a') + "\r\n\r\n")
          .status,
      431);
}

TEST_F(HttpAttack, BodiesHaveLimits) {
  const std::string head =
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
      "application/json\r\n";
  EXPECT_EQ(answer_to(head + "Content-Length: 1000000000\r\n\r\n").status, 413);
  // As chunks, whose sum is only known at the end.
  Socket socket(server().port());
  ASSERT_TRUE(socket.send(head + "Transfer-Encoding: chunked\r\n\r\n"));
  const std::string chunk = "10000\r\n" + std::string(0x10000, ' ') + "\r\n";
  int sent = 0;
  while (sent < 64 && socket.send(chunk)) ++sent;
  EXPECT_TRUE(socket.receive_all(5000).starts_with("HTTP/1.1 413"));
  EXPECT_EQ(answer_to(head + "Transfer-Encoding: chunked\r\n\r\n1;" + std::string(300, 'x') +
                      "\r\n \r\n0\r\n\r\n")
                .status,
            400);
  EXPECT_EQ(answer_to(head + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n").status, 400);
  // A chunk may say that it has 1 GiB: it is counted while it arrives.
  Socket huge(server().port());
  ASSERT_TRUE(huge.send(head + "Transfer-Encoding: chunked\r\n\r\n40000000\r\n"));
  const std::string piece(0x10000, ' ');
  for (sent = 0; sent < 0x1000 && huge.send(piece); ++sent) {
  }
  EXPECT_TRUE(huge.receive_all(5000).starts_with("HTTP/1.1 413"));
  EXPECT_EQ(answer_to(head + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n").status,
            400);
}

TEST_F(HttpAttack, SlowRequestsAreEnded) {
  Socket head(server().port()), body(server().port()), silent(server().port());
  head.send("GET /health HTT");
  body.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{");
  EXPECT_TRUE(head.receive_all(5000).starts_with("HTTP/1.1 408"));
  EXPECT_TRUE(body.receive_all(5000).starts_with("HTTP/1.1 408"));
  EXPECT_EQ(silent.receive_all(5000), "");
}

TEST_F(HttpAttack, HealthAnswersWhileConnectionsAreHeld) {
  ScriptOptions options;
  options.service.http.max_connections = 50;
  ScriptedServer full(R"({"output": "Hello."})", options);
  std::vector<std::unique_ptr<Socket>> held;
  for (int i = 0; i < 52; ++i) {
    held.push_back(std::make_unique<Socket>(full.port()));
    held.back()->send("GET /health HTTP/1.1\r\n");
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(ask(full.port(), "GET", "/health").status, 200);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(500));
  EXPECT_EQ(ask(full.port(), "GET", "/v1/models").status, 503);
}

TEST_F(HttpAttack, PathsDoNotLeaveTheirRoutes) {
  for (const char* path : {"/../../etc/passwd", "/v1/models/../../etc/passwd", "//health",
                           "/v1/models/%2e%2e%2f", "/v1/models/%zz", "/%00", "/health/"}) {
    EXPECT_EQ(ask(server().port(), "GET", path).status, 404) << path;
  }
}

TEST_F(HttpAttack, BodiesOfAllSorts) {
  const auto status = [](const std::string& body) {
    return ask(server().port(), "POST", "/v1/chat/completions", body).status;
  };
  EXPECT_EQ(status("{\"messages\":\"\xff\xfe\"}"), 400);
  EXPECT_EQ(status(std::string(200'000, '[')), 400);
  std::string deep;
  for (int i = 0; i < 50'000; ++i) deep += "{\"a\":";
  EXPECT_EQ(status(deep), 400);
  EXPECT_EQ(status("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":1e999}"),
            400);
  EXPECT_EQ(status("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":" +
                   std::string(5000, '9') + "}"),
            400);
  EXPECT_EQ(status(std::string("{\"a\":\0}", 7)), 400);
  // Nothing of a field's name may end a header line.
  const Answer split =
      ask(server().port(), "POST", "/v1/chat/completions",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"a\\r\\nSet-Cookie: b=c\":1}");
  EXPECT_EQ(split.status, 200);
  EXPECT_FALSE(split.headers.contains("set-cookie"));
}

// A client that requests a long stream and reads nothing stalls itself only, and is cancelled.
TEST_F(HttpAttack, AClientThatDoesNotReadIsCancelled) {
  ScriptOptions options{.context = 32768};
  options.service.http.write_stall = std::chrono::milliseconds(500);
  ScriptedServer long_answers(R"({"match": "long", "output": "tick ", "repeat": 1000000}
{"output": "Hello."})",
                              options);
  const nlohmann::json body = {{"messages", {{{"role", "user"}, {"content", "long"}}}},
                               {"max_tokens", 30000},
                               {"stream", true},
                               {"logprobs", true},
                               {"n", 4}};
  Socket silent(long_answers.port(), 4096);
  ASSERT_TRUE(silent.send(request_text("POST", "/v1/chat/completions", body.dump())));
  const auto begin = std::chrono::steady_clock::now();
  bool cancelled = false;
  while (!cancelled && std::chrono::steady_clock::now() - begin < std::chrono::seconds(30)) {
    const nlohmann::json hello = {{"messages", {{{"role", "user"}, {"content", "x"}}}}};
    EXPECT_EQ(long_answers.chat(hello).status, 200);
    const std::string metrics = ask(long_answers.port(), "GET", "/metrics").body;
    cancelled = metrics.find("dsv4_disconnects_total 0\n") == metrics.npos &&
                metrics.find("dsv4_requests_running 0\n") != metrics.npos;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_TRUE(cancelled);
}

// Bytes after its request hide from a read that a client has left.
TEST_F(HttpAttack, AClientThatPipelinedAndLeftIsCancelled) {
  const nlohmann::json body = {{"messages", {{{"role", "user"}, {"content", "slow"}}}},
                               {"max_tokens", 3000}};
  {
    Socket socket(server().port());
    socket.send(test::request_text("POST", "/v1/chat/completions", body.dump()) + "\r\n");
    EXPECT_TRUE(metrics_become("dsv4_requests_running 1\n"));
  }
  EXPECT_TRUE(metrics_become("dsv4_requests_running 0\n"));
}

// Clients that stay on the places of /health do not keep others from asking.
TEST_F(HttpAttack, AReservedPlaceIsForOneRequest) {
  ScriptOptions options;
  options.service.http.max_connections = 4;
  ScriptedServer full(R"({"output": "Hello."})", options);
  std::vector<std::unique_ptr<Socket>> held;
  for (int i = 0; i < 4 + 20; ++i) {
    held.push_back(std::make_unique<Socket>(full.port()));
    held.back()->send(i < 4 ? "GET /health HTTP/1.1\r\n"
                            : "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    if (i < 4) continue;
    std::string bytes;
    while (!test::parse_answer(bytes).complete && held.back()->receive(bytes, 5000)) {
    }
    EXPECT_EQ(test::parse_answer(bytes).status, 200) << i;
  }
}

TEST_F(HttpAttack, EveryRefusalHasAnId) {
  ScriptOptions options;
  options.service.http.max_connections = 1;
  options.service.http.reserved_connections = 0;
  ScriptedServer full(R"({"output": "Hello."})", options);
  Socket held(full.port());
  held.send("GET /health HTTP/1.1\r\n");
  const Answer refused = ask(full.port(), "GET", "/health");
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.headers.contains("x-request-id"));
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
}

TEST_F(HttpAttack, RejectsTextPlain) {
  const std::string body = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}";
  EXPECT_EQ(answer_to("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                      "text/plain\r\nContent-Length: " +
                      std::to_string(body.size()) + "\r\n\r\n" + body)
                .status,
            415);
}

// The answer of the whole request takes a minute, unless it is cancelled.
TEST_F(HttpAttack, DisconnectsAtEveryByte) {
  nlohmann::json body = {{"messages", {{{"role", "user"}, {"content", "slow"}}}},
                         {"max_tokens", 3000},
                         {"stream", true}};
  const std::string text = request_text("POST", "/v1/chat/completions", body.dump());
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Socket socket(server().port());
    socket.send(text.substr(0, cut));
    if (cut == text.size()) {
      EXPECT_TRUE(metrics_become("dsv4_requests_running 1\n"));
    }
  }
  EXPECT_TRUE(metrics_become("dsv4_requests_running 0\n"));
  EXPECT_TRUE(metrics_become("dsv4_connections 1\n"));
}

}  // namespace
}  // namespace dsv4::test
