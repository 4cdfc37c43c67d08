#include "dsv4/convert/imatrix.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"

namespace dsv4 {
namespace {

void check_vector(const std::string& name, const ConstTensorView& values, int64_t k,
                  const std::string& what) {
  if (values.dtype != DType::kF32 || values.rank != 1 || values.dim(0) != k)
    fail(ErrorCode::kBadInput, "{}: {}: want [{}] F32, one value per column, got {}", what,
         quotable(name), k, to_string(values));
  for (int64_t i = 0; i < k; ++i) {
    const float value = values.as<float>()[i];
    if (!(value >= 0) || !std::isfinite(value))
      fail(ErrorCode::kBadInput, "{}: {}: value {} is {}: want finite values >= 0", what,
           quotable(name), i, value);
  }
}

int64_t layers_of(const ConvertList& list) {
  int64_t layers = 0;
  for (const OutputItem& item : list.items)
    if (!item.id.drafter) layers = std::max<int64_t>(layers, item.id.layer + 1);
  return layers;
}

// The experts of the layer that a name stands for.
std::map<std::string, int64_t> matrices_of(const ConvertList& list, int64_t layers) {
  std::map<std::string, int64_t> count;
  for (const OutputItem& item : list.items) {
    const LlamaName llama = llama_name(item.name, layers);
    if (item.is_weight && llama.matrix >= 0)
      count[llama.name] = std::max(count[llama.name], llama.matrix + 1);
  }
  return count;
}

// Matrix m of the entry, which has `matrices` of them.
std::vector<float> matrix_of(const LlamaImatrix::Entry& entry, int64_t matrices, int64_t m) {
  const int64_t k = std::ssize(entry.values) / matrices;
  return {entry.values.begin() + m * k, entry.values.begin() + (m + 1) * k};
}

// The mean over all matrices: each counts as often as it saw a token.
std::vector<float> mean_of(const LlamaImatrix::Entry& entry, int64_t k) {
  const int64_t matrices = std::ssize(entry.values) / k;
  std::vector<float> mean(static_cast<size_t>(k));
  double tokens = 0;
  for (int64_t m = 0; m < matrices; ++m) {
    const double weight =
        entry.counts.empty() ? 1 : static_cast<double>(entry.counts[static_cast<size_t>(m)]);
    tokens += weight;
    for (size_t j = 0; j < mean.size(); ++j)
      mean[j] += static_cast<float>(
          weight * static_cast<double>(entry.values[static_cast<size_t>(m * k) + j]));
  }
  for (float& value : mean) value = tokens > 0 ? static_cast<float>(value / tokens) : 0.f;
  return mean;
}

}  // namespace

Imatrix::Imatrix(const std::string& path, const ConvertList& list) {
  const MappedFile file(path);
  if (!is_gguf(file.bytes()) && !path.ends_with(".dat")) {
    vectors_ = file_.emplace(path).tensors();
    return;
  }
  for (auto& [name, values] :
       map_llama_imatrix(parse_llama_imatrix(file.bytes(), path), list, path)) {
    const Buffer& copy =
        values_.emplace_back(DType::kF32, std::initializer_list<int64_t>{std::ssize(values)});
    std::copy(values.begin(), values.end(), copy.as<float>());
    vectors_[name] = copy;
  }
}

void Imatrix::release_pages() const {
  if (file_) file_->release_pages();
}

std::map<std::string, std::vector<float>> map_llama_imatrix(const LlamaImatrix& file,
                                                            const ConvertList& list,
                                                            const std::string& what) {
  const int64_t layers = layers_of(list);
  const std::map<std::string, int64_t> stacked = matrices_of(list, layers);
  std::map<std::string, std::vector<float>> vectors;
  std::set<std::string> used;
  for (const OutputItem& item : list.items) {
    if (!item.is_weight) continue;
    const LlamaName llama = llama_name(item.name, layers);
    const auto entry = file.entries.find(llama.name);
    if (entry == file.entries.end()) continue;
    used.insert(llama.name);
    const auto count = std::ssize(entry->second.values);
    const int64_t matrices =
        llama.matrix < 0 ? std::max<int64_t>(count / item.k, 1) : stacked.at(llama.name);
    const auto counts = std::ssize(entry->second.counts);
    if (count != matrices * item.k || (counts != 0 && counts != matrices))
      fail(ErrorCode::kBadInput, "{}: {} has {} values for {}: want {} matrices of {} columns",
           what, quotable(llama.name), count, item.name, matrices, item.k);
    std::vector<float> values = llama.matrix < 0 ? mean_of(entry->second, item.k)
                                                 : matrix_of(entry->second, matrices, llama.matrix);
    if (std::ranges::all_of(values, [](float value) { return value == 0; })) continue;
    vectors[item.name] = std::move(values);
  }
  for (const auto& [name, entry] : file.entries)
    if (!used.contains(name)) vectors[name] = entry.values;
  return vectors;
}

ImatrixUse check_imatrix(const std::map<std::string, ConstTensorView>& imatrix,
                         const ConvertList& list, const std::string& what) {
  ImatrixUse use;
  std::set<std::string_view> known;
  for (const OutputItem& item : list.items) {
    if (item.is_weight) known.insert(item.name);
    if (!item.searched()) continue;
    const auto at = imatrix.find(item.name);
    if (at == imatrix.end()) {
      ++use.missing;
      continue;
    }
    check_vector(item.name, at->second, item.k, what);
    ++use.used;
  }
  for (const auto& [name, values] : imatrix) {
    if (known.count(name) == 0) use.unknown.push_back(name);
  }
  return use;
}

}  // namespace dsv4
