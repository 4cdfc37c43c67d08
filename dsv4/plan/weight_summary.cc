#include "dsv4/plan/weight_summary.h"

#include <iterator>

#include "dsv4/base/error.h"

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
    if (item.kept.empty()) continue;
    if (summary.kept++ == 0) summary.kept_example = fmt::format("{}: {}", item.name, item.kept);
  }
  return summary;
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
