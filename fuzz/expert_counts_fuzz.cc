// A file of --experts-counts, for a model of two layers of four experts: every layer has each
// expert once, the most used first and those used equally in ascending order.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "dsv4/model/expert_counts.h"
#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dsv4::fuzz::allow_bad_input([&] {
    dsv4::ModelConfig config;
    config.num_layers = 2, config.num_experts = 4;
    const std::string text(dsv4::fuzz::text(data, size));
    const auto order = dsv4::parse_expert_counts(text, "input", config);
    const auto layers = nlohmann::json::parse(text).at("layers");
    dsv4::fuzz::require(order.size() == 2);
    for (size_t l = 0; l < order.size(); ++l) {
      const auto uses = layers.at(l).get<std::vector<int64_t>>();
      std::vector<int32_t> all{0, 1, 2, 3};
      std::stable_sort(all.begin(), all.end(), [&](int32_t a, int32_t b) {
        return uses[static_cast<size_t>(a)] > uses[static_cast<size_t>(b)];
      });
      dsv4::fuzz::require(order[l] == all);
    }
  });
  return 0;
}
