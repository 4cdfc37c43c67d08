// How a converted checkpoint is split into safetensors files, and their index.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dsv4/convert/convert_list.h"

namespace dsv4 {

struct ShardPlan {
  std::string file;           // "model-00002-of-00020.safetensors", or model.safetensors if alone
  size_t begin = 0, end = 0;  // range of items in the list
};

// Puts consecutive items with up to `shard_bytes` of data into a file; a larger item gets its own.
std::vector<ShardPlan> plan_shards(const ConvertList& list, int64_t shard_bytes);

// model.safetensors.index.json for the files in `folder`; writes nothing for a single file.
void write_shard_index(const std::string& folder, const std::vector<ShardPlan>& shards);

}  // namespace dsv4
