#include "dsv4/server/metrics.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dsv4/base/mapped_file.h"

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

// Every metric that docs/grafana.json reads is one that the server has.
TEST(Metrics, TheDashboardReadsWhatThereIs) {
  const std::string text = Metrics().text(false, "m");
  const auto dashboard = nlohmann::json::parse(read_text_file("docs/grafana.json"));
  size_t names = 0;
  for (const auto& panel : dashboard.at("panels")) {
    for (const auto& target : panel.at("targets")) {
      const std::string expression = target.at("expr");
      size_t here = 0;
      for (size_t at = expression.find("dsv4_"); at != expression.npos;
           at = expression.find("dsv4_", at + 1), ++here) {
        const size_t end =
            expression.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_", at);
        std::string name = expression.substr(at, end - at);
        const bool bucket = name.ends_with("_bucket");
        if (bucket) name.resize(name.size() - 7);
        EXPECT_TRUE(has_line(text, "# TYPE " + name + (bucket ? " histogram" : " counter")) ||
                    has_line(text, "# TYPE " + name + " gauge"))
            << panel.at("title") << ": " << name;
        ++names;
      }
      EXPECT_GT(here, 0u) << expression;
    }
  }
  EXPECT_GT(names, 10u);
}

}  // namespace
}  // namespace dsv4
