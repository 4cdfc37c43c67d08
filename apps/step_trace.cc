#include "apps/step_trace.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace dsv4::apps {

using Json = nlohmann::ordered_json;

Json trace_report(const std::vector<KernelRun>& kernels) {
  struct Sum {
    int64_t launches = 0;
    double us = 0, gap_us = 0, exposed_us = 0;
  };
  std::map<std::string, Sum> sums;
  Json list = Json::array();
  double latest = kernels.empty() ? 0 : kernels.front().start_us, idle = 0, overlap = 0;
  for (const KernelRun& kernel : kernels) {
    const double gap = kernel.start_us - latest;
    (gap > 0 ? idle : overlap) += std::abs(gap);
    const double exposed = std::max(kernel.start_us + kernel.us - latest, 0.0);
    latest += exposed;
    Sum& sum = sums[kernel.name];
    ++sum.launches;
    sum.us += kernel.us, sum.gap_us += gap, sum.exposed_us += exposed;
    list.push_back({{"kernel", kernel.name},
                    {"start_us", kernel.start_us - kernels.front().start_us},
                    {"us", kernel.us},
                    {"gap_us", gap},
                    {"exposed_us", exposed},
                    {"ctas", kernel.ctas}});
  }
  std::vector<std::pair<std::string, Sum>> order(sums.begin(), sums.end());
  std::sort(order.begin(), order.end(),
            [](const auto& a, const auto& b) { return a.second.exposed_us > b.second.exposed_us; });
  Json by_kernel = Json::array();
  for (const auto& [name, sum] : order)
    by_kernel.push_back({{"kernel", name},
                         {"launches", sum.launches},
                         {"us", sum.us},
                         {"gap_us", sum.gap_us},
                         {"exposed_us", sum.exposed_us}});
  return {{"wall_us", kernels.empty() ? 0 : latest - kernels.front().start_us},
          {"idle_us", idle},
          {"overlap_us", overlap},
          {"by_kernel", std::move(by_kernel)},
          {"kernels", std::move(list)}};
}

}  // namespace dsv4::apps
