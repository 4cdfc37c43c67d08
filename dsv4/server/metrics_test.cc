#include "dsv4/server/metrics.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

TEST(Metrics, WritesPrometheusText) {
  Metrics metrics;
  metrics.add("dsv4_requests_total", 2, "finish=\"stop\"");
  metrics.add("dsv4_requests_total", 1, "finish=\"length\"");
  metrics.set("dsv4_requests_running", 3);
  metrics.observe("dsv4_ttft_seconds", 0.003);
  metrics.observe("dsv4_ttft_seconds", 1000);
  const std::string text = metrics.text(true, "a\"b");
  EXPECT_TRUE(has_line(text, "# TYPE dsv4_requests_total counter"));
  EXPECT_TRUE(has_line(text, "dsv4_requests_total{finish=\"stop\"} 2"));
  EXPECT_TRUE(has_line(text, "dsv4_requests_running 3"));
  EXPECT_TRUE(has_line(text, "dsv4_ttft_seconds_bucket{le=\"0.0025\"} 0"));
  EXPECT_TRUE(has_line(text, "dsv4_ttft_seconds_bucket{le=\"0.005\"} 1"));
  EXPECT_TRUE(has_line(text, "dsv4_ttft_seconds_bucket{le=\"250\"} 1"));
  EXPECT_TRUE(has_line(text, "dsv4_ttft_seconds_bucket{le=\"+Inf\"} 2"));
  EXPECT_TRUE(has_line(text, "dsv4_ttft_seconds_count 2"));
  EXPECT_TRUE(has_line(text, "vllm:num_requests_running{model_name=\"a\\\"b\"} 3"));
  EXPECT_TRUE(has_line(text, "dsv4_requests_waiting 0")) << "before its first value";
  EXPECT_EQ(metrics.text(false, "m").find("vllm:"), std::string::npos);
}

}  // namespace
}  // namespace dsv4
