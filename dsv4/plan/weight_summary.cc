#include "dsv4/plan/weight_summary.h"

#include <bit>
#include <cstring>
#include <iterator>

#include "dsv4/base/error.h"
#include "dsv4/convert/recipe_codebooks.h"

namespace dsv4 {
namespace {

bool is_drafter(const std::string& name) {
  return name.rfind("mtp.", 0) == 0;
}

std::string part_of(const OutputItem& item) {
  if (is_drafter(item.name)) return name(WeightPart::kDrafter);
  return name(item.id.part == WeightPart::kOther ? part_of_tensor(item.name) : item.id.part);
}

std::string format_of(const OutputItem& item) {
  if (!item.is_weight) return "other";
  switch (item.target.kind) {
    case Target::Kind::kBF16:
      return name(WeightFormat::kBF16);
    case Target::Kind::kFp8:
      return "fp8";
    case Target::Kind::kMxfp4:
    case Target::Kind::kNvfp4:
      return to_string(item.target);
    case Target::Kind::kKbit:
      return fmt::format("k{}", item.target.bits);
    case Target::Kind::kKeep:
      break;
  }
  if (item.source == WeightFormat::kKbit) return fmt::format("k{}", item.source_bits);
  return item.source == WeightFormat::kFp8Block ? "fp8" : name(item.source);
}

void add(Amount& sum, const Amount& more) {
  sum.tensors += more.tensors;
  sum.bytes += more.bytes;
  sum.values += more.values;
}

}  // namespace

WeightSummary summarize(const ConvertList& list) {
  WeightSummary summary{.idle = list.idle};
  for (const OutputItem& item : list.items) {
    Amount amount{.values = item.n * item.k};
    for (const OutputTensor& tensor : item.tensors) {
      ++amount.tensors;
      amount.bytes += tensor.meta.bytes();
      if (!item.is_weight) amount.values += tensor.meta.numel();
      add(summary.dtypes[std::string(name(tensor.meta.dtype))],
          {.tensors = 1, .bytes = tensor.meta.bytes(), .values = tensor.meta.numel()});
    }
    for (Amount* sum :
         {&summary.total, &summary.parts[part_of(item)], &summary.formats[format_of(item)]})
      add(*sum, amount);
    if (item.target.kind == Target::Kind::kKbit) ++summary.codebooks[to_string(item.target)];
    if (item.kept.empty()) continue;
    if (summary.kept++ == 0) summary.kept_example = fmt::format("{}: {}", item.name, item.kept);
  }
  return summary;
}

CodebookCounts codebooks_of(const Model& model) {
  CodebookCounts counts;
  for (const auto& [name, stored] : model.checkpoint().tensors()) {
    if (!name.ends_with(".codebook") || stored.view.dtype != DType::kF32) continue;
    std::vector<float> values(static_cast<size_t>(stored.view.numel()));
    std::memcpy(values.data(), stored.view.data, values.size() * sizeof(float));
    ++counts[fmt::format("k{}-{}", std::bit_width(values.size()) - 1, codebook_name(values))];
  }
  return counts;
}

std::string to_text(const CodebookCounts& codebooks) {
  std::string text;
  for (const auto& [book, weights] : codebooks)
    text += fmt::format("{}{} ({} weights)", text.empty() ? "" : ", ", book, weights);
  return text;
}

StoredTensors stored_tensors(const std::vector<NamedTensor>& list) {
  StoredTensors stored;
  for (const NamedTensor& tensor : list) stored.emplace(tensor.name, tensor.meta);
  return stored;
}

void drop_drafter(StoredTensors& tensors) {
  for (auto at = tensors.begin(); at != tensors.end();)
    at = is_drafter(at->first) ? tensors.erase(at) : std::next(at);
}

}  // namespace dsv4
