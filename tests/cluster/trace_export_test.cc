// Variables of OpenTelemetry, spans as OTLP's JSON, and collectors that fail or stall. Whether the
// body is what the protocol's schema says is asked in tools/serve/check_traces.py.

#include "apps/trace_export.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "dsv4/base/rng.h"
#include "tests/harness/errors.h"

namespace dsv4::apps {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Variables = std::map<std::string, std::string>;
using Clock = std::chrono::steady_clock;

TraceOptions options_of(const Variables& variables) {
  return trace_options(
      [&](const char* name) {
        const auto found = variables.find(name);
        return found == variables.end() ? "" : found->second;
      },
      "1.2");
}

std::string error_of(Variables variables) {
  variables.emplace("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
  return test::error_of(ErrorCode::kBadInput, [&] { options_of(variables); });
}

TEST(TraceOptions, TheEnvironmentDecides) {
  EXPECT_EQ(options_of({}).endpoint, "");
  EXPECT_EQ(options_of({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/"}}).endpoint,
            "http://c:4318/v1/traces");
  const Variables both = {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"},
                          {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://t/path"}};
  EXPECT_EQ(options_of(both).endpoint, "https://t/path");
  for (const auto& [name, value] :
       Variables{{"OTEL_SDK_DISABLED", "TRUE"}, {"OTEL_TRACES_EXPORTER", "none"}}) {
    Variables off = both;
    off[name] = value;
    EXPECT_EQ(options_of(off).endpoint, "") << name;
  }
  const TraceOptions all =
      options_of({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"},
                  {"OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%2Cb, x = y"},
                  {"OTEL_EXPORTER_OTLP_TIMEOUT", "250"},
                  {"OTEL_RESOURCE_ATTRIBUTES", "service.name=no,k8s.pod.name=p-1"},
                  {"OTEL_SERVICE_NAME", "flash"},
                  {"OTEL_TRACES_SAMPLER", "parentbased_traceidratio"},
                  {"OTEL_TRACES_SAMPLER_ARG", "0.25"},
                  {"OTEL_BSP_MAX_QUEUE_SIZE", "10"}});
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(all.headers, (Pairs{{"api-key", "a,b"}, {"x", "y"}}));
  EXPECT_EQ(all.timeout, milliseconds(250));
  EXPECT_EQ(
      all.resource,
      (Variables{{"service.name", "flash"}, {"service.version", "1.2"}, {"k8s.pod.name", "p-1"}}));
  EXPECT_EQ(all.ratio, 0.25);
  EXPECT_TRUE(all.follow_caller);
  EXPECT_EQ(all.most_waiting, 10u);
  EXPECT_EQ(all.most_in_batch, 10u);
}

TEST(TraceOptions, ErrorsNameTheVariable) {
  EXPECT_TRUE(test::says(error_of({{"OTEL_EXPORTER_OTLP_ENDPOINT", "c:4318"}}), "want http://"));
  EXPECT_TRUE(test::says(error_of({{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}}), "want http/json"));
  EXPECT_TRUE(test::says(error_of({{"OTEL_TRACES_EXPORTER", "zipkin"}}), "OTEL_TRACES_EXPORTER"));
  EXPECT_TRUE(test::says(error_of({{"OTEL_TRACES_SAMPLER", "jaeger"}}), "want always_on"));
  for (const char* share : {"2", "-1", "nan", "x", "0.5x"})
    EXPECT_TRUE(test::says(
        error_of({{"OTEL_TRACES_SAMPLER", "traceidratio"}, {"OTEL_TRACES_SAMPLER_ARG", share}}),
        "from 0 to 1"))
        << share;
  for (const char* number : {"0", "-5", "1e3", "99999999999"})
    EXPECT_TRUE(
        test::says(error_of({{"OTEL_BSP_SCHEDULE_DELAY", number}}), "OTEL_BSP_SCHEDULE_DELAY"))
        << number;
  for (const char* headers : {"novalue", "=v", "k=%zz", "k=a%0d%0aX: y", "a\nb=c"})
    EXPECT_TRUE(test::says(error_of({{"OTEL_EXPORTER_OTLP_HEADERS", headers}}), "is not key=value"))
        << headers;
}

// Random bytes as lists of pairs: an error in one sentence, or pairs that are safe in a header.
TEST(TraceOptions, HostileLists) {
  Rng rng(3);
  const std::string_view alphabet = "ab=,% \r\n\t0aF\"\\\x01\x7f\xff";
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (int64_t n = rng.below(20); n > 0; --n)
      text += alphabet[static_cast<size_t>(rng.below(static_cast<int64_t>(alphabet.size())))];
    try {
      const TraceOptions options = options_of(
          {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"}, {"OTEL_EXPORTER_OTLP_HEADERS", text}});
      for (const auto& [key, value] : options.headers)
        for (const std::string* word : {&key, &value})
          EXPECT_EQ(word->find_first_of("\r\n\x01\x7f"), word->npos);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    }
  }
}

RequestTrace one_trace() {
  return {.begin = std::chrono::system_clock::time_point(std::chrono::seconds(1'700'000'000)),
          .times = {.queue = 0.25, .first_token = 1, .total = 3},
          .parent = TraceContext{std::string(32, 'a'), std::string(16, 'b'), true},
          .path = "/v1/chat/completions",
          .model = "demo",
          .request_id = "req_1",
          .client_id = "mine",
          .finish = "stop",
          .usage = {.prompt = 10, .cached = 4, .completion = 6}};
}

std::vector<json> spans_of(const std::vector<RequestTrace>& traces) {
  int64_t next = 0;
  const NewId ids = [&](size_t bytes) { return fmt::format("{:0{}x}", ++next, 2 * bytes); };
  const TraceOptions options = options_of({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"}});
  const json body = json::parse(encode_traces(traces, options, "1.2", ids));
  EXPECT_EQ(body["resourceSpans"].size(), 1u);
  const json& scope = body["resourceSpans"][0]["scopeSpans"][0];
  EXPECT_EQ(scope["scope"], json({{"name", "dsv4"}, {"version", "1.2"}}));
  return scope["spans"];
}

TEST(TraceSpans, ARequestHasFour) {
  const std::vector<json> spans = spans_of({one_trace()});
  ASSERT_EQ(spans.size(), 4u);
  const auto second = [&](size_t i, const char* end) {
    return (std::stoll(spans[i][end].get<std::string>()) - 1'700'000'000'000'000'000) / 1e9;
  };
  const char *begin = "startTimeUnixNano", *end = "endTimeUnixNano";
  EXPECT_EQ(spans[0]["name"], "POST /v1/chat/completions");
  EXPECT_EQ(spans[0]["kind"], 2);
  EXPECT_EQ(spans[0]["parentSpanId"], std::string(16, 'b'));
  EXPECT_EQ(std::pair(second(0, begin), second(0, end)), std::pair(0.0, 3.0));
  EXPECT_EQ(spans[1]["name"], "queue");
  EXPECT_EQ(std::pair(second(1, begin), second(1, end)), std::pair(0.0, 0.25));
  EXPECT_EQ(spans[2]["name"], "prefill");
  EXPECT_EQ(std::pair(second(2, begin), second(2, end)), std::pair(0.25, 1.0));
  EXPECT_EQ(spans[3]["name"], "decode");
  EXPECT_EQ(std::pair(second(3, begin), second(3, end)), std::pair(1.0, 3.0));
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(spans[i]["traceId"], std::string(32, 'a'));
    EXPECT_EQ(spans[i]["parentSpanId"], i == 0 ? json(std::string(16, 'b')) : spans[0]["spanId"]);
  }
  std::map<std::string, json> attributes;
  for (const json& one : spans[0]["attributes"]) attributes[one["key"]] = *one["value"].begin();
  EXPECT_EQ(attributes["gen_ai.usage.input_tokens"], "10");
  EXPECT_EQ(attributes["dsv4.client_request_id"], "mine");
  EXPECT_EQ(attributes["http.response.status_code"], "200");
  EXPECT_FALSE(spans[0].contains("status"));
}

// A request that waited in vain has no tokens, and one without a caller a trace of its own.
TEST(TraceSpans, WhatNeverBegan) {
  RequestTrace trace = one_trace();
  trace.parent.reset();
  trace.times = {.queue = 0, .first_token = -1, .total = 2};
  trace.status = 503;
  const std::vector<json> spans = spans_of({trace, trace});
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_FALSE(spans[0].contains("parentSpanId"));
  EXPECT_EQ(spans[0]["status"]["code"], 2);
  EXPECT_EQ(spans[1]["name"], "queue");
  EXPECT_NE(spans[0]["traceId"], spans[2]["traceId"]);
}

TEST(TraceSampling, AShareOfTheTraces) {
  Rng rng(9);
  int taken = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string id = fmt::format("{:016x}{:016x}", rng.bits(), rng.bits());
    EXPECT_TRUE(is_sampled(id, 1));
    EXPECT_FALSE(is_sampled(id, 0));
    taken += is_sampled(id, 0.3);
  }
  EXPECT_NEAR(taken / 20'000.0, 0.3, 0.02);  // six standard deviations
}

// Takes connections and answers each with `answer`; without one it reads and says nothing.
class Collector {
 public:
  explicit Collector(std::string answer)
      : answer_(std::move(answer)), fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd_, 8), 0);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~Collector() {
    stopping_ = true;
    thread_.join();
    for (const int fd : open_) close(fd);
    close(fd_);
  }
  TraceOptions options() const {
    TraceOptions options;
    options.endpoint = fmt::format("http://127.0.0.1:{}/v1/traces", port_);
    options.delay = milliseconds(20);
    options.timeout = milliseconds(3000);
    options.most_waiting = 8;
    options.most_in_batch = 4;
    return options;
  }
  int requests() const { return requests_; }

 private:
  void run() {
    while (!stopping_) {
      pollfd waiting{fd_, POLLIN, 0};
      if (poll(&waiting, 1, 20) != 1) continue;
      const int client = accept(fd_, nullptr, nullptr);
      open_.push_back(client);
      ++requests_;
      if (answer_.empty()) continue;
      std::string request;
      char bytes[65536];
      while (request.find("\"resourceSpans\"") == request.npos) {
        const ssize_t size = recv(client, bytes, sizeof bytes, 0);
        if (size <= 0) break;
        request.append(bytes, static_cast<size_t>(size));
      }
      send(client, answer_.data(), answer_.size(), MSG_NOSIGNAL);
      shutdown(client, SHUT_WR);
    }
  }

  const std::string answer_;
  int fd_;
  uint16_t port_ = 0;
  std::vector<int> open_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> requests_ = 0;
  std::thread thread_;
};

// The longest time that handing a trace over took, of 200 in 200 ms.
milliseconds longest_add(TraceExporter& exporter) {
  auto longest = Clock::duration::zero();
  for (int i = 0; i < 200; ++i) {
    const auto begin = Clock::now();
    exporter.add(one_trace());
    longest = std::max(longest, Clock::now() - begin);
    std::this_thread::sleep_for(milliseconds(1));
  }
  return std::chrono::duration_cast<milliseconds>(longest);
}

constexpr int64_t kSpans = 4 * 200;  // of those traces
constexpr milliseconds kMuch{1000};  // for a lock and an append, on a busy machine

TEST(TraceExporter, ACollectorThatStallsDelaysNothing) {
  const Collector collector("");
  int64_t dropped = 0;
  const auto begin = Clock::now();
  {
    TraceExporter exporter(collector.options(), "1.2");
    EXPECT_LT(longest_add(exporter), kMuch);  // a request to it takes 3 s
    EXPECT_EQ(exporter.exported(), 0);
    dropped = exporter.dropped();
  }
  EXPECT_GT(dropped, kSpans / 2) << "the queue holds 8 of 200";
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
}

TEST(TraceExporter, ACollectorThatFailsIsCounted) {
  const Collector collector("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n");
  TraceExporter exporter(collector.options(), "1.2");
  longest_add(exporter);
  for (const auto end = Clock::now() + std::chrono::seconds(20);
       exporter.dropped() < kSpans && Clock::now() < end;)
    std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(exporter.dropped(), kSpans);
  EXPECT_EQ(exporter.exported(), 0);
}

TEST(TraceExporter, NoCollectorIsThere) {
  TraceOptions options;
  options.endpoint = "http://127.0.0.1:1/v1/traces";
  options.delay = milliseconds(10);
  {
    TraceExporter exporter(options, "1.2");
    EXPECT_LT(longest_add(exporter), kMuch);
  }
}

TEST(TraceExporter, WhatWaitsIsSentAtTheEnd) {
  const Collector collector("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
  TraceOptions options = collector.options();
  options.delay = std::chrono::minutes(1);
  {
    TraceExporter exporter(options, "1.2");
    exporter.add(one_trace());
    RequestTrace unwanted = one_trace();
    unwanted.parent->sampled = false;  // its caller does not record it
    exporter.add(unwanted);
    EXPECT_EQ(exporter.exported(), 0);
  }
  EXPECT_EQ(collector.requests(), 1);
}

}  // namespace
}  // namespace dsv4::apps
