#include "dsv4/model/expert_counts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"

namespace dsv4 {
namespace {

using Json = nlohmann::json;

std::vector<int64_t> uses_of_layer(const Json& layer, const std::string& file, int64_t num) {
  if (!layer.is_array() || std::ssize(layer) != num)
    fail(ErrorCode::kBadInput, "{}: want {} counts in each layer", file, num);
  std::vector<int64_t> uses;
  for (const Json& count : layer) {
    if (!count.is_number_unsigned() || count.get<uint64_t>() > uint64_t{1} << 62)
      fail(ErrorCode::kBadInput, "{}: {} is not a count of uses", file,
           quotable(count.dump(-1, ' ', true, Json::error_handler_t::replace)));
    uses.push_back(count.get<int64_t>());
  }
  return uses;
}

}  // namespace

std::vector<std::vector<int32_t>> parse_expert_counts(const std::string& text,
                                                      const std::string& name,
                                                      const ModelConfig& config) {
  constexpr size_t kMaxPath = 4096;
  const std::string file = printable(name, kMaxPath);
  const Json counts = Json::parse(text, nullptr, false);
  if (!counts.is_object() || !counts.contains("experts") || !counts.contains("layers") ||
      !counts["layers"].is_array())
    fail(ErrorCode::kBadInput,
         "{}: no counts of experts: want {{\"experts\": E, \"layers\": [[uses of each expert] "
         "...]}}, as --experts-counts-out and `tools/expert_trace.py replay --counts` write them",
         file);
  const Json& layers = counts["layers"];
  if (counts["experts"] != config.num_experts || std::ssize(layers) != config.num_layers)
    fail(ErrorCode::kBadInput, "{}: counts of {} layers, the model has {} of {} experts", file,
         layers.size(), config.num_layers, config.num_experts);
  std::vector<std::vector<int32_t>> order;
  for (const Json& layer : layers) {
    const std::vector<int64_t> uses = uses_of_layer(layer, file, config.num_experts);
    std::vector<int32_t>& ids = order.emplace_back(uses.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
      return uses[static_cast<size_t>(a)] > uses[static_cast<size_t>(b)];
    });
  }
  return order;
}

std::string expert_counts_text(const std::vector<std::vector<int64_t>>& uses) {
  DSV4_CHECK(!uses.empty(), "uses of the experts of {} layers", uses.size());
  std::vector<std::vector<uint64_t>> layers;  // what the parser takes
  for (const std::vector<int64_t>& layer : uses) {
    DSV4_CHECK(layer.size() == uses[0].size(), "layers of {} and {} experts", uses[0].size(),
               layer.size());
    layers.emplace_back(layer.begin(), layer.end());
  }
  return Json{{"experts", uses[0].size()}, {"layers", layers}}.dump() + "\n";
}

}  // namespace dsv4
