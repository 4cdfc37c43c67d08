// How a converted checkpoint is cut into safetensors files, and the index over them.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dsv4/convert/convert_list.h"

namespace dsv4 {

struct ShardPlan {
  std::string file;           // "model-00002-of-00020.safetensors", or model.safetensors if alone
  size_t begin = 0, end = 0;  // items of the list
};

// Consecutive items up to `shard_bytes` of data a file; a larger item has one for itself.
std::vector<ShardPlan> plan_shards(const ConvertList& list, int64_t shard_bytes);

// model.safetensors.index.json over the files that lie in `folder`; nothing for a single file.
void write_shard_index(const std::string& folder, const std::vector<ShardPlan>& shards);

}  // namespace dsv4
