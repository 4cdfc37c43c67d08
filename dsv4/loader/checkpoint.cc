#include "dsv4/loader/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/loader/names.h"
#include "dsv4/loader/shard_index.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxIndexBytes = size_t{256} << 20;  // Pro's index has about 15 MB

std::string file_name(const std::string& path) {
  return fs::path(path).filename().string();
}

bool exists(const std::string& path) {
  std::error_code ignored;  // what cannot be looked at is reported by whoever opens it
  return fs::exists(path, ignored);
}

// The one *.safetensors of a folder that has neither an index nor model.safetensors.
std::string only_safetensors(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> found;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") found.push_back(entry->path().string());
  }
  if (error) fail(ErrorCode::kIo, "cannot read folder {}: {}", folder, error.message());
  if (found.empty()) fail(ErrorCode::kBadInput, "no .safetensors file in {}", folder);
  if (found.size() > 1)
    fail(ErrorCode::kBadInput, "{} has {} .safetensors files but no model.safetensors.index.json",
         folder, found.size());
  return found[0];
}

std::string wanted(std::initializer_list<DType> dtypes, std::initializer_list<int64_t> shape) {
  std::string text = "[";
  for (const int64_t extent : shape)
    text += fmt::format("{}{}", text.size() > 1 ? ", " : "", extent);
  text += "] ";
  for (const DType dtype : dtypes)
    text += fmt::format("{}{}", text.back() == ' ' ? "" : "|", name(dtype));
  return text;
}

bool fits(const ConstTensorView& view, std::initializer_list<DType> dtypes,
          std::initializer_list<int64_t> shape) {
  return std::find(dtypes.begin(), dtypes.end(), view.dtype) != dtypes.end() &&
         std::equal(shape.begin(), shape.end(), view.shape.begin(), view.shape.begin() + view.rank);
}

}  // namespace

Checkpoint Checkpoint::open(const std::string& folder) {
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  const std::string index = folder + "/model.safetensors.index.json";
  const std::string single = folder + "/model.safetensors";
  if (exists(index)) {
    checkpoint.add_shards(index);
  } else {
    checkpoint.add_file(exists(single) ? single : only_safetensors(folder), {});
  }
  return checkpoint;
}

void Checkpoint::add_shards(const std::string& index_path) {
  const auto weight_map = parse_shard_index(read_text_file(index_path, kMaxIndexBytes), index_path);
  std::set<std::string> shards;
  for (const auto& [name, file] : weight_map) shards.insert(file);
  std::vector<std::string> missing;
  std::copy_if(shards.begin(), shards.end(), std::back_inserter(missing),
               [&](const std::string& file) { return !exists(folder_ + "/" + file); });
  if (!missing.empty())
    fail(ErrorCode::kBadInput, "{} of {} shards are missing from {}: {}{}", missing.size(),
         shards.size(), folder_, missing[0], missing.size() > 1 ? ", ..." : "");
  for (const std::string& file : shards) add_file(folder_ + "/" + file, weight_map);

  std::map<std::string_view, const SafetensorsFile*> by_name;
  for (const SafetensorsFile& file : files_) by_name[std::string_view(file.path())] = &file;
  for (const auto& [name, file] : weight_map) {
    const std::string path = folder_ + "/" + file;
    if (by_name.at(path)->tensors().count(name) == 0)
      fail(ErrorCode::kBadInput, "{} is not in {}, where {} says it is", name, path,
           file_name(index_path));
  }
}

void Checkpoint::add_file(const std::string& path,
                          const std::map<std::string, std::string>& weight_map) {
  const SafetensorsFile& file = files_.emplace_back(path);
  for (const auto& [stored, view] : file.tensors()) {
    const auto listed = weight_map.find(stored);
    if (listed != weight_map.end() && folder_ + "/" + listed->second != path) continue;
    for (OfficialTensor& part : official_tensors(stored, view)) {
      const auto [at, fresh] =
          tensors_.emplace(std::move(part.name), StoredTensor{part.view, file.path(), part.half});
      if (!fresh)
        fail(ErrorCode::kBadInput, "{} is there twice: in {} and, as {}, in {}", at->first,
             at->second.file, stored, path);
    }
  }
}

const StoredTensor& Checkpoint::find(const std::string& name) const {
  const auto at = tensors_.find(name);
  if (at == tensors_.end()) fail(ErrorCode::kBadInput, "{} is missing from {}", name, folder_);
  asked_.insert(name);
  return at->second;
}

const StoredTensor& Checkpoint::find(const std::string& name, std::initializer_list<DType> dtypes,
                                     std::initializer_list<int64_t> shape) const {
  const StoredTensor& stored = find(name);
  if (!fits(stored.view, dtypes, shape))
    fail(ErrorCode::kBadInput, "{}: want {}, got {} ({})", name, wanted(dtypes, shape),
         to_string(stored.view), stored.file);
  return stored;
}

ConstTensorView Checkpoint::tensor(const std::string& name, std::initializer_list<DType> dtypes,
                                   std::initializer_list<int64_t> shape) const {
  return find(name, dtypes, shape).view;
}

WeightView Checkpoint::weight(const std::string& prefix, int64_t n, int64_t k) const {
  const std::string name = prefix + ".weight";
  const StoredTensor& stored = find(name);
  WeightView weight{.n = n, .k = k, .data = stored.view};
  switch (stored.view.dtype) {
    case DType::kE4M3:
      return fp8_weight(prefix, weight);
    case DType::kI8:
    case DType::kU8:
      return fp4_weight(prefix, weight);
    case DType::kBF16:
      weight.format = WeightFormat::kBF16;
      break;
    case DType::kF16:
      weight.format = WeightFormat::kF16;
      break;
    default:
      weight.format = WeightFormat::kF32;
  }
  find(name, {DType::kF32, DType::kBF16, DType::kF16, DType::kE4M3, DType::kI8, DType::kU8},
       {n, k});
  return weight;
}

WeightView Checkpoint::fp8_weight(const std::string& prefix, WeightView weight) const {
  const auto [n, k] = std::pair(weight.n, weight.k);
  weight.format = WeightFormat::kFp8Block;
  find(prefix + ".weight", {DType::kE4M3}, {n, k});
  const std::string scale = prefix + ".scale";
  weight.scale = e8m0_scale(scale, {DType::kE8M0, DType::kF32, DType::kU8},
                            {ceil_div(n, kFp8BlockSize), ceil_div(k, kFp8BlockSize)});
  // The last scale row of w1 would then also hold for the first rows of w3.
  if (const StoredTensor& stored = find(scale); stored.half && n % kFp8BlockSize != 0)
    fail(ErrorCode::kBadInput, "{}: {} rows of stacked experts cut the {}-row scale blocks ({})",
         scale, n, kFp8BlockSize, stored.file);
  return weight;
}

WeightView Checkpoint::fp4_weight(const std::string& prefix, WeightView weight) const {
  const bool nvfp4 = has(prefix + ".weight_scale");
  const int64_t group = nvfp4 ? kNvfp4Group : kMxfp4Group;
  weight.format = nvfp4 ? WeightFormat::kNvfp4 : WeightFormat::kMxfp4;
  const StoredTensor& stored =
      find(prefix + ".weight", {DType::kI8, DType::kU8}, {weight.n, weight.k / 2});
  if (weight.k % group != 0)
    fail(ErrorCode::kBadInput, "{}.weight: {} needs k to be a multiple of {}, k is {} ({})", prefix,
         name(weight.format), group, weight.k, stored.file);
  if (!nvfp4) {
    weight.scale =
        e8m0_scale(prefix + ".scale", {DType::kE8M0, DType::kU8}, {weight.n, weight.k / group});
    return weight;
  }
  weight.scale = tensor(prefix + ".weight_scale", {DType::kE4M3}, {weight.n, weight.k / group});
  weight.scale2 = scalar(prefix + ".weight_scale_2");
  asked_.insert(prefix + ".input_scale");
  return weight;
}

ConstTensorView Checkpoint::e8m0_scale(const std::string& name, std::initializer_list<DType> dtypes,
                                       std::initializer_list<int64_t> shape) const {
  ConstTensorView scale = tensor(name, dtypes, shape);
  if (scale.dtype == DType::kU8) scale.dtype = DType::kE8M0;
  return scale;
}

float Checkpoint::scalar(const std::string& name) const {
  const StoredTensor& stored = find(name);
  return *(stored.view.rank == 0 ? tensor(name, {DType::kF32}, {})
                                 : tensor(name, {DType::kF32}, {1}))
              .as<float>();
}

std::vector<std::string> Checkpoint::unused() const {
  std::vector<std::string> names;
  for (const auto& [name, stored] : tensors_) {
    if (asked_.count(name) == 0) names.push_back(name);
  }
  return names;
}

}  // namespace dsv4
