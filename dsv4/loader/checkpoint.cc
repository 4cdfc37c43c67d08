#include "dsv4/loader/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/formats/finite.h"
#include "dsv4/loader/names.h"
#include "dsv4/loader/shard_index.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kAlign = 64;                        // of tensors without a file
constexpr size_t kMaxIndexBytes = size_t{256} << 20;  // Pro's index has about 15 MB

std::string file_name(const std::string& path) {
  return fs::path(path).filename().string();
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

std::string expected_text(std::initializer_list<DType> dtypes,
                          std::initializer_list<int64_t> shape) {
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
  if (is_present(index)) {
    checkpoint.add_shards(index);
  } else {
    checkpoint.add_file(is_present(single) ? single : only_safetensors(folder), {});
  }
  return checkpoint;
}

Checkpoint Checkpoint::shapes(const std::string& what,
                              const std::map<std::string, TensorMeta>& tensors) {
  Checkpoint checkpoint;
  checkpoint.folder_ = what;
  checkpoint.has_data_ = false;
  int64_t offset = 0;
  for (const auto& [name, meta] : tensors) {
    checkpoint.tensors_.emplace(
        name, StoredTensor{.view = {meta, unmapped_address(offset)}, .file = "no file"});
    offset += align_up(meta.bytes(), kAlign);
  }
  return checkpoint;
}

Checkpoint Checkpoint::blank(const std::string& what,
                             const std::map<std::string, TensorMeta>& tensors, const Fill& fill) {
  int64_t bytes = 0;
  for (const auto& [name, meta] : tensors) bytes += align_up(meta.bytes(), kAlign);
  Checkpoint checkpoint;
  checkpoint.folder_ = what;
  std::byte* at = checkpoint.blank_.emplace(bytes).data();
  for (const auto& [name, meta] : tensors) {
    fill(name, {meta, at});
    checkpoint.tensors_.emplace(name, StoredTensor{.view = {meta, at}, .file = "memory"});
    at += align_up(meta.bytes(), kAlign);
  }
  return checkpoint;
}

std::optional<Checkpoint::FilePlace> Checkpoint::place(const std::byte* data) const {
  for (const SafetensorsFile& file : files_) {
    const std::span<const std::byte> bytes = file.bytes();
    if (data >= bytes.data() && data < bytes.data() + bytes.size())
      return FilePlace{file.path(), data - bytes.data()};
  }
  return std::nullopt;
}

void Checkpoint::add_shards(const std::string& index_path) {
  const auto weight_map = parse_shard_index(read_text_file(index_path, kMaxIndexBytes), index_path);
  std::set<std::string> shards;
  for (const auto& [name, file] : weight_map) shards.insert(file);
  std::vector<std::string> missing;
  std::error_code ignored;  // what cannot be looked up is missing too
  std::copy_if(shards.begin(), shards.end(), std::back_inserter(missing),
               [&](const std::string& file) { return !fs::exists(folder_ + "/" + file, ignored); });
  if (!missing.empty())
    fail(ErrorCode::kBadInput, "{} of {} shards are missing from {}: {}{}", missing.size(),
         shards.size(), folder_, quotable(missing[0]), missing.size() > 1 ? ", ..." : "");
  for (const std::string& file : shards) add_file(folder_ + "/" + file, weight_map);

  std::map<std::string_view, const SafetensorsFile*> by_name;
  for (const SafetensorsFile& file : files_) by_name[std::string_view(file.path())] = &file;
  for (const auto& [name, file] : weight_map) {
    const std::string path = folder_ + "/" + file;
    if (by_name.at(path)->tensors().count(name) == 0)
      fail(ErrorCode::kBadInput, "{} is not in {}, where {} says it is", quotable(name),
           quotable(path), file_name(index_path));
  }
}

void Checkpoint::add_file(const std::string& path,
                          const std::map<std::string, std::string>& weight_map) {
  const SafetensorsFile& file = files_.emplace_back(path);
  for (const auto& [stored, view] : file.tensors()) {
    const auto listed = weight_map.find(stored);
    if (listed != weight_map.end() && folder_ + "/" + listed->second != path) continue;
    for (OfficialTensor& tensor : official_tensors(stored, view)) {
      const auto [at, fresh] = tensors_.emplace(
          std::move(tensor.name), StoredTensor{tensor.view, file.path(), tensor.half});
      if (!fresh)
        fail(ErrorCode::kBadInput, "{} occurs twice: in {} and, as {}, in {}", quotable(at->first),
             at->second.file, quotable(stored), path);
    }
  }
}

const StoredTensor& Checkpoint::find(const std::string& name) const {
  const auto at = tensors_.find(name);
  if (at == tensors_.end()) fail(ErrorCode::kBadInput, "{} is missing from {}", name, folder_);
  requested_.insert(name);
  return at->second;
}

const StoredTensor& Checkpoint::find(const std::string& name, std::initializer_list<DType> dtypes,
                                     std::initializer_list<int64_t> shape) const {
  const StoredTensor& stored = find(name);
  if (!fits(stored.view, dtypes, shape))
    fail(ErrorCode::kBadInput, "{}: want {}, got {} ({})", name, expected_text(dtypes, shape),
         to_string(stored.view), stored.file);
  return stored;
}

ConstTensorView Checkpoint::tensor(const std::string& name, std::initializer_list<DType> dtypes,
                                   std::initializer_list<int64_t> shape) const {
  return find(name, dtypes, shape).view;
}

std::string Checkpoint::damage(const std::string& name) const {
  const StoredTensor& stored = find(name);
  if (blank_ || !has_data_) return "";
  ConstTensorView view = stored.view;
  if (view.dtype == DType::kU8 && is_e8m0_scale(name)) view.dtype = DType::kE8M0;
  const auto at = first_non_finite(view);
  return at ? fmt::format("{}: value {} is {} ({}): the file is damaged", quotable(name), *at,
                          value_at(view, *at), stored.file)
            : "";
}

void Checkpoint::check_finite(const std::string& name) const {
  const std::string text = damage(name);
  if (!text.empty()) fail(ErrorCode::kBadInput, text);
}

// Older writers store E8M0 as U8; the U8 scales of k-bit weights are another format, in which every
// byte is a number.
bool Checkpoint::is_e8m0_scale(const std::string& name) const {
  constexpr std::string_view kEnd = ".scale";
  if (!name.ends_with(kEnd)) return false;
  const auto weight = tensors_.find(name.substr(0, name.size() - kEnd.size()) + ".weight");
  return weight != tensors_.end() && weight->second.view.dtype != DType::kI32;
}

void Checkpoint::rename_prefix(const std::string& from, const std::string& to) {
  std::vector<std::string> names;
  for (auto at = tensors_.lower_bound(from); at != tensors_.end() && at->first.starts_with(from);)
    names.push_back((at++)->first);
  for (const std::string& name : names) {
    const std::string renamed = to + name.substr(from.size());
    if (has(renamed)) continue;
    auto node = tensors_.extract(name);
    node.key() = renamed;
    tensors_.insert(std::move(node));
  }
}

std::vector<std::string> Checkpoint::unused() const {
  std::vector<std::string> names;
  for (const auto& [name, stored] : tensors_) {
    if (requested_.count(name) == 0) names.push_back(name);
  }
  return names;
}

void Checkpoint::release_pages() const {
  for (const SafetensorsFile& file : files_) file.release_pages();
}

}  // namespace dsv4
