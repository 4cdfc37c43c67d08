// What operators see: their own port, readiness, gauges of the cache.

#include <gtest/gtest.h>

#include "tests/server/service_data.h"

namespace dsv4::test {
namespace {

// Pickers of clusters read metrics and render prompts where the requests go, and have no key.
TEST(ServiceAdmin, MetricsAndRenderedPromptsMayBeOpen) {
  const std::string body = chat_body("Hi").dump();
  const char *render = "/v1/chat/completions/render", *completions = "/v1/completions/render";
  for (const bool open : {false, true}) {
    ScriptOptions options;
    options.service.http.admin_port = 0;
    options.service.api_keys = {{"test", "a-secret"}};
    options.service.open_metrics = options.service.open_render = open;
    ScriptedServer split(kServiceScript, options);
    const uint16_t port = split.port();
    EXPECT_EQ(ask(port, "GET", "/metrics").status, open ? 200 : 404);
    EXPECT_EQ(ask(port, "POST", render, body).status, open ? 200 : 401);
    EXPECT_EQ(ask(port, "POST", completions, R"({"prompt": "Hi"})").status, open ? 200 : 401);
    // Nothing else is.
    EXPECT_EQ(ask(port, "POST", "/v1/chat/completions", body).status, 401);
    EXPECT_EQ(ask(port, "POST", "/v1/dsv4/render", body).status, 401);
    EXPECT_EQ(ask(port, "GET", "/v1/dsv4/requests").status, 404);
    EXPECT_EQ(ask(port, "GET", "/v1/models").status, 401);
    EXPECT_EQ(ask(split.service().admin_port(), "GET", "/metrics").status, 200);
  }
}

TEST(ServiceAdmin, TheSizeOfTheCacheIsAMetric) {
  ScriptedServer model("");
  const std::string metrics = ask(model.port(), "GET", "/metrics").body;
  const std::string labels =
      "block_size=\"128\",num_gpu_blocks=\"128\",kv_cache_size_tokens=\"16384\","
      "enable_prefix_caching=\"True\"} 1\n";  // four sequences of 4096 tokens
  EXPECT_NE(metrics.find("\ndsv4_cache_config_info{" + labels), metrics.npos);
  EXPECT_NE(metrics.find("\nvllm:cache_config_info{model_name=\"demo\"," + labels), metrics.npos);
}

TEST(ServiceAdmin, OperatorsMayHaveTheirOwnPort) {
  ScriptOptions options;
  options.service.http.admin_port = 0;
  options.service.http.max_admin_connections = 2;
  ScriptedServer split(kServiceScript, options);
  const uint16_t port = split.port(), admin = split.service().admin_port();
  ASSERT_NE(admin, 0);
  ASSERT_NE(admin, port);
  for (const char* both : {"/health", "/ready", "/version"}) {
    EXPECT_EQ(ask(port, "GET", both).status, 200) << both;
    EXPECT_EQ(ask(admin, "GET", both).status, 200) << both;
  }
  for (const char* of_operators : {"/metrics", "/v1/dsv4/requests", "/v1/dsv4/cache"}) {
    EXPECT_EQ(ask(port, "GET", of_operators).status, 404) << of_operators;
    EXPECT_EQ(ask(admin, "GET", of_operators).status, 200) << of_operators;
  }
  EXPECT_EQ(ask(admin, "POST", "/v1/dsv4/cache/drop", "{}").status, 200);
  EXPECT_EQ(ask(port, "POST", "/v1/dsv4/cache/drop", "{}").status, 404);
  for (const char* of_clients : {"/", "/v1/models"}) {
    EXPECT_EQ(ask(port, "GET", of_clients).status, 200) << of_clients;
    EXPECT_EQ(ask(admin, "GET", of_clients).status, 404) << of_clients;
  }
  const std::string body = chat_body("Hi").dump();
  EXPECT_EQ(ask(port, "POST", "/v1/chat/completions", body).status, 200);
  EXPECT_EQ(ask(admin, "POST", "/v1/chat/completions", body).status, 404);
  // It has connections of its own, and a limit of its own.
  Socket first(admin), second(admin);
  for (Socket* held : {&first, &second}) held->send("GET /health HTTP/1.1\r\n");
  int status = 200;
  for (int i = 0; i < 200 && status != 503; ++i) status = ask(admin, "GET", "/health").status;
  EXPECT_EQ(status, 503);
  EXPECT_EQ(ask(port, "GET", "/health").status, 200);
  // While the server drains, its port is closed and this one says so.
  first.close();
  second.close();
  Socket slow(port);
  json waits = chat_body("slow");
  waits["stream"] = true;
  slow.send(request_text("POST", "/v1/chat/completions", waits.dump()));
  std::string bytes;
  while (bytes.find("\"ick\"") == bytes.npos) ASSERT_TRUE(slow.receive(bytes));
  split.service().drain();
  for (int i = 0; i < 200 && status != 200; ++i) {
    const Answer ready = ask(admin, "GET", "/ready");
    status = ready.json().is_object() && ready.json()["status"] == "draining" ? 200 : 0;
  }
  EXPECT_EQ(status, 200);
  EXPECT_FALSE(Socket(port).is_open());
}

// Keys are asked for at this port, too.
TEST(ServiceAdmin, TheAdminPortWantsKeys) {
  ScriptOptions options;
  options.service.api_keys = {{"test", "a-secret"}};
  options.service.http.admin_port = 0;
  ScriptedServer locked(kServiceScript, options);
  const uint16_t admin = locked.service().admin_port();
  EXPECT_EQ(ask(admin, "GET", "/v1/dsv4/requests").status, 401);
  EXPECT_EQ(ask(admin, "GET", "/v1/dsv4/requests", "", "x-api-key: a-secret\r\n").status, 403);
  EXPECT_EQ(ask(admin, "GET", "/metrics").status, 200);
}

// A step that takes longer than the watchdog allows: the process lives, and is not ready.
TEST(ServiceAdmin, AStalledStepIsNotReady) {
  ScriptOptions options;
  options.service.watchdog = std::chrono::seconds(0);
  ScriptedServer stalled(R"({"match": "long", "output": "w", "step_ms": 1500}
{"output": "Hello."})",
                         options);
  Socket socket(stalled.port());
  socket.send(request_text("POST", "/v1/chat/completions", chat_body("long").dump(),
                           "Connection: close\r\n"));
  const auto ready = [&] { return ask(stalled.port(), "GET", "/ready"); };
  Answer answer = ready();
  for (int i = 0; i < 1000 && answer.status == 200; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    answer = ready();
  }
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.json()["status"], "stalled");
  EXPECT_EQ(ask(stalled.port(), "GET", "/health").status, 200);
  EXPECT_EQ(test::parse_answer(socket.receive_all()).status, 200);
  EXPECT_EQ(ready().status, 200);
}

// Usage of the bundled model's cache is above zero while a request runs, read when it is asked for.
TEST(ServiceAdmin, TheUsageOfPagesIsMeasured) {
  ScriptedServer model("");
  json body = chat_body("Tell me a story.");
  body.update({{"stream", true}, {"max_tokens", 400}, {"ignore_eos", true}});
  Socket socket(model.port());
  socket.send(request_text("POST", "/v1/chat/completions", body.dump()));
  double usage = 0;
  for (int i = 0; i < 2000 && usage <= 0; ++i) {
    usage = metric(model.port(), "dsv4_kv_usage_ratio");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_GT(usage, 0);
  EXPECT_LT(usage, 1);
  // By kind of page; all kinds together are the ratio.
  const auto pages = [&](const std::string& group, const std::string& use) {
    return metric(model.port(), "dsv4_cache_pages{group=\"" + group + "\",use=\"" + use + "\"}");
  };
  EXPECT_GT(pages("window", "running"), 0);
  for (const char* group : {"window", "ratio4", "ratio128"}) EXPECT_GT(pages(group, "free"), 0);
  EXPECT_EQ(metric(model.port(), "dsv4_state_slots{use=\"running\"}"), 1);
  EXPECT_EQ(metric(model.port(), "dsv4_state_slots{use=\"free\"}"), 3);
}

}  // namespace
}  // namespace dsv4::test
