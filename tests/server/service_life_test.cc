// The server's checks and life over loopback: errors, limits, cancellation, drain, keys, origins.
// The engine is scripted.

#include <gtest/gtest.h>

#include <fstream>

#include "tests/server/service_data.h"

namespace dsv4::test {
namespace {

TEST(ServiceLife, ErrorsHaveTheFormOfTheirApi) {
  const Answer chat = server().chat({{"messages", json::array()}});
  EXPECT_EQ(chat.status, 400);
  EXPECT_EQ(chat.json()["error"]["type"], "invalid_request_error");
  EXPECT_EQ(chat.json()["error"]["param"], "messages");
  const Answer messages = server().post(
      "/v1/messages", {{"messages", json::array({{{"role", "tool"}, {"content", "x"}}})}});
  EXPECT_EQ(messages.status, 400);
  EXPECT_EQ(messages.json()["type"], "error");
  EXPECT_EQ(messages.json()["error"]["type"], "invalid_request_error");
  const Answer model = server().chat({{"model", "gpt"}, {"messages", json::array()}});
  EXPECT_EQ(model.status, 404);
  EXPECT_EQ(model.json()["error"]["code"], "model_not_found");
  EXPECT_EQ(ask(server().port(), "POST", "/v1/chat/completions", "{").status, 400);
  EXPECT_EQ(ask(server().port(), "POST", "/v1/chat/completions", "[1]").status, 400);
  EXPECT_EQ(ask(server().port(), "GET", "/v1/nothing").status, 404);
  const Answer method = ask(server().port(), "GET", "/v1/chat/completions");
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.headers.at("allow"), "POST");
}

TEST(ServiceLife, EveryRouteSaysWhichMethodsItTakes) {
  const std::string_view origin = "Origin: http://localhost\r\n";
  for (const Route& route : Service::routes()) {
    if (route.method.empty()) continue;
    std::string path = "/v1" + std::string(route.path);
    if (const size_t at = path.find("{}"); at != path.npos) path.replace(at, 2, "x");
    const Answer refused = ask(server().port(), "PUT", path);
    EXPECT_EQ(refused.status, 405) << path;
    EXPECT_EQ(refused.headers.at("allow"), route.allow()) << path;
    const Answer preflight = ask(server().port(), "OPTIONS", path, "", origin);
    EXPECT_EQ(preflight.status, 204) << path;
    EXPECT_EQ(preflight.headers.at("access-control-allow-methods"), route.allow()) << path;
  }
  EXPECT_EQ(ask(server().port(), "OPTIONS", "/v1/nothing", "", origin).status, 404);
}

// The client's own words, wherever the field became another one inside.
TEST(ServiceLife, ErrorsNameTheClientsFields) {
  const auto param = [](const char* path, json body) {
    const Answer answer = server().post(path, body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.json()["error"].value("message", "").substr(0, 40);
  };
  EXPECT_TRUE(param("/v1/messages",
                    {{"messages", json::array({user("x")})}, {"stop_sequences", json::array({""})}})
                  .starts_with("stop_sequences"));
  EXPECT_TRUE(param("/v1/responses", {{"input", "x"}, {"max_output_tokens", 0}})
                  .starts_with("max_output_tokens"));
  EXPECT_TRUE(
      param("/v1/responses",
            {{"input", json::array({{{"role", "user"},
                                     {"content", json::array({{{"type", "input_image"}}})}}})}})
          .starts_with("input[0].content[0]"));
}

TEST(ServiceLife, RefusesByNameWhatIsNotThere) {
  const json fields = {{"min_p", 1.5},
                       {"presence_penalty", 3},
                       {"logit_bias", {{"99999", 1}}},
                       {"top_logprobs", 21},
                       {"structured_outputs", {{"structural_tag", json::object()}}},
                       {"audio", json::object()},
                       {"functions", json::array()},
                       {"stop_token_ids", std::vector<int>(1025, 5)},
                       {"priority", 3}};
  for (const auto& [key, value] : fields.items()) {
    json body = chat_body("Hi");
    body["logprobs"] = true;
    body[key] = value;
    const Answer answer = server().chat(body);
    EXPECT_EQ(answer.status, 400) << key;
    EXPECT_TRUE(answer.json()["error"]["param"].get<std::string>().starts_with(key)) << answer.body;
  }
}

// In the answer, in the body of an error, and for two requests at a time that share a name.
TEST(ServiceLife, AClientNamesItsRequest) {
  const std::string_view name = "X-Request-Id: trace/0af7-1\r\n";
  const auto id_of = [](const Answer& answer) { return answer.headers.at("x-request-id"); };
  EXPECT_EQ(id_of(server().post("/v1/chat/completions", chat_body("Hi"), name)), "trace/0af7-1");
  EXPECT_EQ(id_of(ask(server().port(), "GET", "/v1/models", "", name)), "trace/0af7-1");
  const Answer refused = server().post("/v1/messages", {{"messages", 3}, {"max_tokens", 1}}, name);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(id_of(refused), "trace/0af7-1");
  EXPECT_EQ(refused.json()["request_id"], "trace/0af7-1");
  for (const char* bad : {"X-Request-Id: a b\r\n", "X-Request-Id:\r\n", "X-Request-Id: \"a\"\r\n"})
    EXPECT_TRUE(
        id_of(server().post("/v1/chat/completions", chat_body("Hi"), bad)).starts_with("req_"));
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      EXPECT_EQ(id_of(server().post("/v1/chat/completions", chat_body("Hi"), name)),
                "trace/0af7-1");
    });
  }
  for (std::thread& client : clients) client.join();
}

TEST(ServiceLife, WarnsOfFieldsWithoutEffect) {
  json body = chat_body("Hi");
  body["store"] = true;
  body["brand_new"] = 1;
  const Answer answer = server().chat(body);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("x-dsv4-warning"), "brand_new, store");
}

TEST(ServiceLife, ContextErrorsHaveBothNumbers) {
  json body = chat_body("Hi");
  body["max_tokens"] = 5000;
  const Answer answer = server().chat(body);
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.json()["error"]["code"], "context_length_exceeded");
  const std::string message = answer.json()["error"]["message"];
  EXPECT_NE(message.find("4096"), message.npos);
  EXPECT_NE(message.find("5000"), message.npos);
}

constexpr std::string_view kClose = "Connection: close\r\n";  // or the server waits for more

TEST(ServiceLife, SmallRoutes) {
  const uint16_t port = server().port();
  EXPECT_EQ(ask(port, "GET", "/health").status, 200);
  EXPECT_EQ(ask(port, "GET", "/version").json()["version"], "test");
  const json models = ask(port, "GET", "/v1/models").json();
  ASSERT_EQ(models["data"].size(), 2u);
  EXPECT_EQ(models["data"][0]["id"], "demo");
  EXPECT_EQ(models["data"][0]["context_length"], 4096);
  EXPECT_EQ(ask(port, "GET", "/v1/models/other/name").status, 200);
  EXPECT_EQ(ask(port, "GET", "/v1/models/other%2Fname").status, 200);
  EXPECT_EQ(ask(port, "GET", "/v1/models/none").status, 404);
  const json ids = server().post("/v1/dsv4/tokenize", {{"prompt", "Hello<think>"}}).json();
  EXPECT_EQ(ids["count"], ids["tokens"].size());
  EXPECT_EQ(server().post("/v1/dsv4/detokenize", {{"tokens", ids["tokens"]}}).json()["prompt"],
            "Hello<think>");
  const json rendered = server().post("/v1/dsv4/render", chat_body("Hi")).json();
  EXPECT_NE(rendered["prompt"].get<std::string>().find("<｜User｜>Hi<｜Assistant｜>"),
            std::string::npos);
  EXPECT_EQ(ask(port, "HEAD", "/health").body, "");
  const Answer page = ask(port, "GET", "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_NE(page.headers.at("content-security-policy").find("default-src 'none'"),
            std::string::npos);
  const Answer script = ask(port, "GET", "/page/app.js", "", "Accept-Encoding: gzip\r\n");
  EXPECT_EQ(script.headers.at("content-encoding"), "gzip");
  EXPECT_EQ(script.headers.at("x-content-type-options"), "nosniff");
  const Answer same =
      ask(port, "GET", "/page/app.js", "",
          "Accept-Encoding: gzip\r\nIf-None-Match: " + script.headers.at("etag") + "\r\n");
  EXPECT_EQ(same.status, 304);
  EXPECT_EQ(same.headers.count("content-length"), 0u);  // it would be that of the file
  EXPECT_EQ(ask(port, "GET", "/page/none.js").status, 404);
}

TEST(ServiceLife, MetricsCountRequests) {
  ScriptedServer one(kServiceScript);
  for (int i = 0; i < 3; ++i) one.chat(chat_body("Hi"));
  const auto value = [&](const std::string& name) { return metric(one.port(), name); };
  EXPECT_EQ(value("dsv4_requests_total{finish=\"stop\",api=\"chat\",code=\"200\"}"), 3);
  EXPECT_EQ(value("vllm:num_requests_running{model_name=\"demo\"}"), 0);
  for (const char* name : {"ttft", "e2e", "queue", "prefill"}) {
    EXPECT_EQ(value(fmt::format("dsv4_{}_seconds_count", name)), 3) << name;
    EXPECT_EQ(value(fmt::format("dsv4_{}_seconds_bucket{{le=\"+Inf\"}}", name)), 3) << name;
  }
  EXPECT_GE(value("dsv4_itl_seconds_count"), 3);
  const std::string text = ask(one.port(), "GET", "/metrics").body;
  EXPECT_NE(text.find("vllm:request_success_total{model_name=\"demo\",finished_reason=\"stop\","),
            text.npos);
  EXPECT_EQ(text.find("vllm:request_success_total{model_name=\"demo\",finished_reason=\"error\""),
            text.npos);
}

TEST(ServiceLife, AConnectionServesManyRequests) {
  Socket socket(server().port());
  const std::string body = chat_body("Hi").dump();
  std::string bytes;
  for (int i = 0; i < 3; ++i) socket.send(request_text("POST", "/v1/chat/completions", body));
  for (int i = 0; i < 3; ++i) {
    size_t used = 0;
    while (!parse_answer(bytes, &used).complete) ASSERT_TRUE(socket.receive(bytes));
    EXPECT_EQ(parse_answer(bytes).status, 200);
    bytes.erase(0, used);
  }
}

// The text of an answer, whole or as a stream.
std::string text_of(const Answer& answer, bool stream) {
  EXPECT_EQ(answer.status, 200) << answer.body;
  if (!stream) return answer.json()["choices"][0]["text"];
  std::string text;
  for (const auto& event : test::events_of(answer.body)) {
    if (event.data != "[DONE]") text += event.json()["choices"][0]["text"].get<std::string>();
  }
  return text;
}

// One step of the bundled model computes several requests, and each gets the answer that it gets
// alone.
TEST(ServiceLife, TwentyInParallel) {
  ScriptedServer model("", {.context = 512, .max_sequences = 8});
  const auto answer = [&](int i) {
    const bool stream = i % 3 == 0;
    const json body = {{"prompt", "Once upon a time " + std::to_string(i % 5) + " friends"},
                       {"max_tokens", 24},
                       {"temperature", 0},
                       {"ignore_eos", true},
                       {"stream", stream}};
    return text_of(model.post("/v1/completions", body), stream);
  };
  std::vector<std::string> alone(5), together(20);
  for (int i = 0; i < 5; ++i) alone[static_cast<size_t>(i)] = answer(i);
  const auto steps = [&] { return metric(model.port(), "dsv4_engine_steps_total"); };
  const double before = steps();
  std::vector<std::thread> threads;
  for (int i = 0; i < 20; ++i)
    threads.emplace_back([&, i] { together[static_cast<size_t>(i)] = answer(i); });
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(together[i], alone[i % 5]) << i;
  EXPECT_LT(steps() - before, 20 * 24 / 2);
}

TEST(ServiceLife, ADisconnectCancels) {
  {
    Socket socket(server().port());
    json body = chat_body("slow");
    body["stream"] = true;
    socket.send(request_text("POST", "/v1/chat/completions", body.dump()));
    std::string bytes;
    while (bytes.find("\"ick\"") == bytes.npos) ASSERT_TRUE(socket.receive(bytes));
  }
  for (int i = 0; i < 200 && metric(server().port(), "dsv4_requests_running") != 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(metric(server().port(), "dsv4_requests_running"), 0);
  EXPECT_GT(metric(server().port(), "dsv4_disconnects_total"), 0);
}

TEST(ServiceLife, DeadlinesCut) {
  json body = chat_body("slow");
  body["deadline_ms"] = 300;
  const json choice = server().choice(body);
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["stop_reason"], "deadline");
}

// Each client of a trusted proxy has its own count; what others send in the header counts nothing.
TEST(ServiceLife, ClientsOfATrustedProxyAreCounted) {
  ScriptOptions options;
  options.service.http.max_per_address = 2;
  options.service.http.trusted_proxies = {"127.0.0.1", "10.0.0.1"};
  ScriptedServer proxied(kServiceScript, options);
  const auto request = [&](const std::string& forwarded) {
    json body = chat_body("slow");
    body["stream"] = true;
    const std::string header = forwarded.empty() ? "" : "X-Forwarded-For: " + forwarded + "\r\n";
    return test::request_text("POST", "/v1/chat/completions", body.dump(), header);
  };
  std::vector<std::unique_ptr<test::Socket>> open;
  const auto status = [&](const std::string& forwarded) {
    open.push_back(std::make_unique<test::Socket>(proxied.port()));
    open.back()->send(request(forwarded));
    std::string bytes;
    while (bytes.find("\r\n\r\n") == bytes.npos && open.back()->receive(bytes)) {
    }
    return bytes.size() > 12 ? std::stoi(bytes.substr(9, 3)) : 0;
  };
  EXPECT_EQ(status("203.0.113.7"), 200);
  EXPECT_EQ(status("1.2.3.4, 203.0.113.7"), 200);
  EXPECT_EQ(status("9.9.9.9,203.0.113.7, 10.0.0.1"), 503) << "the third of one client";
  EXPECT_EQ(status("203.0.113.8"), 200);
  EXPECT_EQ(status("no address"), 200) << "counts for the proxy, which has no limit";
  EXPECT_EQ(status(""), 200);
  open.clear();
  int again = 503;
  for (int i = 0; i < 200 && again == 503; ++i) {
    again = status("203.0.113.7");
    if (again == 503) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(again, 200) << "closed connections count no more";
  open.clear();
  ScriptOptions alone;
  alone.service.http.max_per_address = 1;
  ScriptedServer direct(kServiceScript, alone);
  const char* const header = "X-Forwarded-For: 203.0.113.7\r\n";
  test::Socket first(direct.port());
  first.send(test::request_text("GET", "/health", "", header));
  std::string bytes;
  while (!test::parse_answer(bytes).complete) ASSERT_TRUE(first.receive(bytes));
  EXPECT_EQ(ask(direct.port(), "GET", "/health", "", header).status, 200);
}

// Headers leave at admission, and comments keep proxies from closing a stream that computes.
TEST(ServiceLife, ASilentStreamIsKeptAlive) {
  ScriptOptions options;
  options.service.keep_alive = std::chrono::milliseconds(100);
  ScriptedServer silent(R"({"match": "long", "output": "w", "step_ms": 1500}
{"output": "Hello."})",
                        options);
  json body = chat_body("long");
  body["stream"] = true;
  Socket socket(silent.port());
  socket.send(request_text("POST", "/v1/chat/completions", body.dump(), kClose));
  std::string bytes;
  while (bytes.find(": keep-alive\n\n") == bytes.npos) ASSERT_TRUE(socket.receive(bytes));
  EXPECT_EQ(bytes.find("[DONE]"), bytes.npos) << "it came with the end";
  const Answer head = test::parse_answer(bytes);
  EXPECT_EQ(head.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(head.headers.at("cache-control"), "no-store");
  EXPECT_EQ(head.headers.at("x-accel-buffering"), "no");
  bytes += socket.receive_all();
  EXPECT_NE(bytes.find("[DONE]"), bytes.npos);
}

TEST(ServiceLife, AWaitMayBeBounded) {
  ScriptOptions options{.max_sequences = 1};
  options.service.max_wait = std::chrono::milliseconds(100);
  ScriptedServer small(kServiceScript, options);
  json body = chat_body("slow");
  body["stream"] = true;
  test::Socket first(small.port());
  first.send(test::request_text("POST", "/v1/chat/completions", body.dump()));
  std::string bytes;
  while (bytes.find("\"ick\"") == bytes.npos) ASSERT_TRUE(first.receive(bytes));
  const Answer second = small.post("/v1/chat/completions", chat_body("Hi"));
  EXPECT_EQ(second.status, 429) << second.body;
  EXPECT_EQ(second.json()["error"]["code"], "queue_timeout");
  EXPECT_GE(std::stoi(second.headers.at("retry-after")), 1);
}

TEST(ServiceLife, AFullQueueIs429) {
  ScriptOptions options{.max_sequences = 1};
  options.service.max_queue = 1;
  ScriptedServer small(kServiceScript, options);
  json body = chat_body("slow");
  body["stream"] = true;
  const std::string text = request_text("POST", "/v1/chat/completions", body.dump());
  Socket first(small.port()), second(small.port());
  std::string bytes;
  first.send(text);
  while (bytes.find("\"ick\"") == bytes.npos) ASSERT_TRUE(first.receive(bytes));
  second.send(text);
  for (int i = 0; i < 200 && metric(small.port(), "dsv4_requests_waiting") != 1; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const Answer third = small.chat(chat_body("Hi"));
  EXPECT_EQ(third.status, 429);
  EXPECT_EQ(third.json()["error"]["code"], "queue_full");
  EXPECT_GE(std::stoi(third.headers.at("retry-after")), 1);
}

TEST(ServiceLife, AnEngineFaultIs500AndExit70) {
  ScriptedServer broken(kServiceScript);
  const Answer answer = broken.chat(chat_body("fault"));
  EXPECT_EQ(answer.status, 500);
  EXPECT_EQ(answer.json()["error"]["type"], "api_error");
  EXPECT_EQ(answer.body.find("script"), std::string::npos) << "details leaked";
  const Answer ready = ask(broken.port(), "GET", "/ready"), next = broken.chat(chat_body("Hi"));
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(ready.json()["status"], "broken");
  EXPECT_EQ(next.status, 503);
  EXPECT_EQ(next.json()["error"]["code"], "broken");
  EXPECT_EQ(next.headers.count("retry-after"), 1u);
  EXPECT_EQ(broken.wait(), 70);
}

TEST(ServiceLife, DrainLetsRunningRequestsFinish) {
  ScriptedServer draining(R"({"output": "w ", "repeat": 20, "step_ms": 20})");
  json body = chat_body("x");
  body["stream"] = true;
  Socket socket(draining.port());
  socket.send(request_text("POST", "/v1/chat/completions", body.dump(), kClose));
  std::string bytes;
  while (bytes.find("\"w\"") == bytes.npos) ASSERT_TRUE(socket.receive(bytes));
  draining.service().drain();
  bytes += socket.receive_all();
  EXPECT_NE(bytes.find("[DONE]"), bytes.npos);
  EXPECT_EQ(draining.wait(), 0);
}

TEST(ServiceLife, DrainEndsWithAnErrorEvent) {
  ScriptOptions options;
  options.service.drain = std::chrono::seconds(0);
  ScriptedServer draining(kServiceScript, options);
  json body = chat_body("slow");
  body["stream"] = true;
  Socket socket(draining.port());
  socket.send(request_text("POST", "/v1/chat/completions", body.dump(), kClose));
  std::string bytes;
  while (bytes.find("\"ick\"") == bytes.npos) ASSERT_TRUE(socket.receive(bytes));
  draining.service().drain();
  bytes += socket.receive_all();
  EXPECT_NE(bytes.find("\"error\""), bytes.npos);
  EXPECT_EQ(bytes.find("[DONE]"), bytes.npos);
  EXPECT_EQ(draining.wait(), 0);
}

TEST(ServiceLife, KeysAreWanted) {
  const std::string path = testing::TempDir() + "/dsv4_keys";
  std::ofstream(path) << "alice:alice-secret\nroot:root-secret:admin\n";
  ScriptOptions options;
  options.service.api_key_file = path;
  ScriptedServer locked(kServiceScript, options);
  const auto status = [&](const char* method, const char* route, const char* headers) {
    return ask(locked.port(), method, route, method[0] == 'P' ? chat_body("Hi").dump() : "",
               headers)
        .status;
  };
  const char* const chat = "/v1/chat/completions";
  EXPECT_EQ(status("POST", chat, ""), 401);
  EXPECT_EQ(status("POST", chat, "Authorization: Bearer wrong-secret\r\n"), 401);
  EXPECT_EQ(status("POST", chat, "Authorization: Bearer alice-secret\r\n"), 200);
  EXPECT_EQ(status("POST", chat, "x-api-key: alice-secret\r\n"), 200);
  EXPECT_EQ(status("GET", "/v1/models", ""), 401);
  EXPECT_EQ(status("GET", "/health", ""), 200);
  EXPECT_EQ(status("GET", "/v1/dsv4/requests", "x-api-key: alice-secret\r\n"), 403);
  EXPECT_EQ(status("GET", "/v1/dsv4/requests", "x-api-key: root-secret\r\n"), 200);
  EXPECT_EQ(status("GET", "/v1/dsv4/cache", "x-api-key: alice-secret\r\n"), 403);
  EXPECT_EQ(status("POST", "/v1/dsv4/cache/drop", "x-api-key: alice-secret\r\n"), 403);
  EXPECT_EQ(status("GET", "/v1/dsv4/cache", "x-api-key: root-secret\r\n"), 200);
  json first = chat_body("Hi");
  first["priority"] = 1;
  const auto prioritized = [&](const char* headers) {
    return ask(locked.port(), "POST", chat, first.dump(), headers).status;
  };
  EXPECT_EQ(prioritized("x-api-key: alice-secret\r\n"), 403);
  EXPECT_EQ(prioritized("x-api-key: root-secret\r\n"), 200);
}

TEST(ServiceLife, WithoutKeysOnlyLoopbackIsServed) {
  ScriptOptions options;
  options.service.http.host = "0.0.0.0";
  EXPECT_THROW(Service(options.service, [] { return Service::Loaded{}; }), Error);
}

// The status of a request to `host` from a page of the same host.
int status_for_host(uint16_t port, const std::string& host) {
  const std::string body = chat_body("Hi").dump();
  test::Socket socket(port);
  socket.send("POST /v1/chat/completions HTTP/1.1\r\nHost: " + host + "\r\nOrigin: http://" + host +
              "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  std::string bytes;
  while (!test::parse_answer(bytes).complete && socket.receive(bytes)) {
  }
  return test::parse_answer(bytes).status;
}

// A name that an attacker's DNS server resolves to 127.0.0.1 is not loopback, whatever it looks
// like.
TEST(ServiceLife, OnlyLoopbackNamesAreServed) {
  const uint16_t port = server().port();
  for (const char* host : {"localhost", "localhost:8000", "127.0.0.1", "127.0.0.1:8000",
                           "127.1.2.3:1", "[::1]", "[::1]:8000"})
    EXPECT_EQ(status_for_host(port, host), 200) << host;
  for (const char* host :
       {"127.evil.example", "127.0.0.1.evil.example", "127.0.0.1.evil.example:8000",
        "localhost.evil.example", "[::1].evil.example", "[::1", "[::1]x", "127.0.0.256", "127.1",
        "localhost:evil", "[127.0.0.1]", "::1", "8.8.8.8", "[::2]", ":8000"})
    EXPECT_EQ(status_for_host(port, host), 403) << host;
}

TEST(ServiceLife, OtherSitesAreRefused) {
  const uint16_t port = server().port();
  const std::string body = chat_body("Hi").dump();
  Socket socket(port);
  socket.send("POST /v1/chat/completions HTTP/1.1\r\nHost: evil.example\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  std::string bytes;
  while (!parse_answer(bytes).complete && socket.receive(bytes)) {
  }
  EXPECT_EQ(parse_answer(bytes).status, 403);
  EXPECT_EQ(
      ask(port, "POST", "/v1/chat/completions", body, "Origin: http://evil.example\r\n").status,
      403);
  EXPECT_EQ(ask(port, "POST", "/v1/chat/completions", body, "Origin: http://localhost\r\n").status,
            200);
  ScriptOptions options;
  options.service.cors_origins = {"https://app.example"};
  ScriptedServer shared(kServiceScript, options);
  const char* const origin = "Origin: https://app.example\r\n";
  EXPECT_EQ(ask(shared.port(), "OPTIONS", "/v1/chat/completions", "", origin).status, 204);
  EXPECT_EQ(ask(shared.port(), "POST", "/v1/chat/completions", body, origin)
                .headers.at("access-control-allow-origin"),
            "https://app.example");
}

}  // namespace
}  // namespace dsv4::test
