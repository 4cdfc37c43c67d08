#include "tests/harness/sparse_checkpoint.h"

#include <filesystem>
#include <fstream>

#include "dsv4/base/error.h"
#include "dsv4/convert/shards.h"
#include "dsv4/loader/safetensors_layout.h"
#include "dsv4/model/released.h"
#include "dsv4/plan/weight_summary.h"

namespace dsv4::test {
namespace {

// Shards of the published indices (docs/spec/dsv4.md 10.1); here they come out about equal.
int64_t num_shards(const std::string& release) {
  return release == "flash" ? 46 : 64;
}

void write_text(const std::string& path, const std::string& text) {
  if (!(std::ofstream(path, std::ios::binary) << text).flush())
    fail(ErrorCode::kIo, "cannot write {}", path);
}

void write_shard(const ConvertList& list, const ShardPlan& shard, const std::string& path) {
  std::vector<std::pair<std::string, TensorMeta>> tensors;
  for (size_t i = shard.begin; i < shard.end; ++i) {
    for (const OutputTensor& tensor : list.items[i].tensors)
      tensors.emplace_back(tensor.name, tensor.meta);
  }
  const SafetensorsLayout layout = layout_safetensors(tensors, {{"format", "pt"}});
  write_text(path, layout.header);
  std::filesystem::resize_file(path, static_cast<uintmax_t>(layout.file_bytes));
}

}  // namespace

void write_sparse_checkpoint(const std::string& release, const std::string& folder) {
  const ModelConfig config = released_config(release);
  const ConvertList list =
      convert_list(stored_tensors(official_tensor_list(config, /*mtp=*/true)), {});
  // A shard ends before the item that would overfill it: room for that loss, lest one more is made.
  constexpr int64_t kSlack = int64_t{64} << 20;
  const std::vector<ShardPlan> shards =
      plan_shards(list, list.bytes / num_shards(release) + kSlack);
  write_text(folder + "/config.json", released_config_json(release));
  for (const ShardPlan& shard : shards) write_shard(list, shard, folder + "/" + shard.file);
  write_shard_index(folder, shards);
}

}  // namespace dsv4::test
