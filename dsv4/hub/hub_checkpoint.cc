// The checkpoint that hub_model.h reads without a download.

#include <set>

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/hub/hub_model.h"
#include "dsv4/loader/shard_index.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxIndex = size_t{256} << 20, kMaxConfig = size_t{16} << 20;
constexpr std::string_view kSafetensors = ".safetensors";

const HubFile& need(const HubModel& model, const std::string& path, const std::string& what) {
  if (const HubFile* file = model.find(path)) return *file;
  fail(ErrorCode::kBadInput, "{} has no {}", what, quotable(path));
}

// What a model without an index has: model.safetensors, or the only file of this kind.
const HubFile& only_safetensors(const HubModel& model, const std::string& what) {
  if (const HubFile* file = model.find("model.safetensors")) return *file;
  std::vector<const HubFile*> found;
  for (const HubFile& file : model.files()) {
    if (file.path.ends_with(kSafetensors) && file.path.find('/') == file.path.npos)
      found.push_back(&file);
  }
  if (found.size() != 1)
    fail(ErrorCode::kBadInput, "{} has {} .safetensors files and no {}", what, found.size(),
         kShardIndexFile);
  return *found[0];
}

}  // namespace

std::string read_hub_config(HubModel& model, const std::string& what) {
  return model.read_text(need(model, "config.json", what), kMaxConfig);
}

Checkpoint open_hub_checkpoint(HubModel& model, const std::string& what) {
  std::string index;
  std::vector<const HubFile*> files;
  if (const HubFile* file = model.find(kShardIndexFile)) {
    index = model.read_text(*file, kMaxIndex);
    std::set<std::string> shards;
    for (const auto& [name, shard] : parse_shard_index(index, kShardIndexFile))
      shards.insert(shard);
    for (const std::string& shard : shards) files.push_back(&need(model, shard, what));
  } else {
    files.push_back(&only_safetensors(model, what));
  }
  const std::vector<std::string> begins = model.read_headers(files);
  std::vector<Checkpoint::FileHeader> headers;
  for (size_t i = 0; i < files.size(); ++i)
    headers.push_back({files[i]->path, begins[i], files[i]->size});
  return Checkpoint::headers(what, index, headers);
}

}  // namespace dsv4
