// Metrics in Prometheus' text form (docs/spec/serving.md 8): counters, gauges and histograms with
// fixed label values, so that no client can make a new series.
//
// Written by the I/O thread only. Gauges are set when a scrape wants them, so none can stick.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace dsv4 {

class Metrics {
 public:
  // `labels` as Prometheus writes them: `finish="stop",api="chat"`; empty for none.
  void add(std::string_view name, double value = 1, std::string_view labels = {});
  void set(std::string_view name, double value, std::string_view labels = {});
  // A histogram of seconds.
  void observe(std::string_view name, double seconds);

  // With `aliases`, also under the names that dashboards for vLLM read.
  std::string text(bool aliases, std::string_view model) const;

 private:
  struct Histogram {
    std::vector<int64_t> counts;  // one more than there are bounds
    double sum = 0;
  };
  std::map<std::string, std::map<std::string, double, std::less<>>, std::less<>> values_;
  std::map<std::string, Histogram, std::less<>> histograms_;
};

}  // namespace dsv4
