#include "dsv4/convert/shards.h"

#include <nlohmann/json.hpp>

#include "dsv4/base/atomic_file.h"
#include "dsv4/base/error.h"
#include "dsv4/loader/safetensors.h"

namespace dsv4 {

std::vector<ShardPlan> plan_shards(const ConvertList& list, int64_t shard_bytes) {
  DSV4_CHECK(shard_bytes > 0, "shards of {} bytes", shard_bytes);
  std::vector<ShardPlan> shards;
  int64_t used = 0;
  for (size_t i = 0; i < list.items.size(); ++i) {
    const int64_t bytes = list.items[i].bytes();
    if (shards.empty() || used + bytes > shard_bytes) {
      shards.push_back({.begin = i});
      used = 0;
    }
    used += bytes;
    shards.back().end = i + 1;
  }
  for (size_t i = 0; i < shards.size(); ++i)
    shards[i].file = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  return shards;
}

void write_shard_index(const std::string& folder, const std::vector<ShardPlan>& shards) {
  if (shards.size() == 1) return;
  int64_t bytes = 0;
  nlohmann::json weight_map = nlohmann::json::object();
  for (const ShardPlan& shard : shards) {
    const SafetensorsFile file(fmt::format("{}/{}", folder, shard.file));
    for (const auto& [name, view] : file.tensors()) {
      weight_map[name] = shard.file;
      bytes += view.bytes();
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", bytes}}},
                                {"weight_map", std::move(weight_map)}};
  write_file(folder + "/model.safetensors.index.json", index.dump(1) + "\n");
}

}  // namespace dsv4
