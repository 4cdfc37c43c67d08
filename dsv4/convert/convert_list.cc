#include "dsv4/convert/convert_list.h"

#include <algorithm>
#include <set>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/formats/kbit.h"

namespace dsv4 {
namespace {

constexpr std::string_view kWeight = ".weight";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Runs of digits compare as numbers: shorter is smaller, except for leading zeros (official names
// have none; with them the order is still strict, by the text).
bool natural_less(std::string_view a, std::string_view b) {
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      const size_t p = i, q = j;
      while (i < a.size() && is_digit(a[i])) ++i;
      while (j < b.size() && is_digit(b[j])) ++j;
      if (i - p != j - q) return i - p < j - q;
      if (const int order = a.substr(p, i - p).compare(b.substr(q, j - q)); order != 0)
        return order < 0;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

TensorMeta meta_of(DType dtype, std::initializer_list<int64_t> shape) {
  return TensorMeta::contiguous(dtype, shape);
}

// The properties of a source weight, derived from its tensors.
struct SourceWeight {
  bool readable = false;
  WeightFormat format = WeightFormat::kF32;
  int64_t n = 0, k = 0;
  int bits = 0;
  std::vector<std::string> names;  // all of its tensors
};

class Source {
 public:
  explicit Source(const StoredTensors& stored) : stored_(stored) {}

  SourceWeight weight(const std::string& prefix, const TensorMeta& meta) const {
    SourceWeight w{.names = {prefix + ".weight"}};
    if (meta.numel() == 0) return w;
    if (meta.dtype == DType::kI32 && meta.rank == 3 && is_kbit(meta.dim(2)))
      return kbit(prefix, meta, std::move(w));
    if (meta.rank != 2) return w;
    w.n = meta.dim(0);
    w.k = meta.dim(1);
    switch (meta.dtype) {
      case DType::kF32:
        return plain(WeightFormat::kF32, std::move(w));
      case DType::kBF16:
        return plain(WeightFormat::kBF16, std::move(w));
      case DType::kF16:
        return plain(WeightFormat::kF16, std::move(w));
      case DType::kE4M3:
        w.format = WeightFormat::kFp8Block;
        w.readable = add(prefix + ".scale", &w);
        return w;
      case DType::kI8:
      case DType::kU8:
        return fp4(prefix, std::move(w));
      default:
        return w;
    }
  }

 private:
  bool add(const std::string& name, SourceWeight* w) const {
    const bool there = stored_.count(name) != 0;
    if (there) w->names.push_back(name);
    return there;
  }
  static SourceWeight plain(WeightFormat format, SourceWeight w) {
    w.format = format;
    w.readable = true;
    return w;
  }
  SourceWeight kbit(const std::string& prefix, const TensorMeta& meta, SourceWeight w) const {
    w.format = WeightFormat::kKbit;
    w.n = meta.dim(0);
    w.k = meta.dim(1) * kKbitBlock;
    w.bits = static_cast<int>(meta.dim(2));
    w.readable = add(prefix + ".scale", &w);
    w.readable = add(prefix + ".codebook", &w) && w.readable;
    add(prefix + ".scale_2", &w);
    return w;
  }
  SourceWeight fp4(const std::string& prefix, SourceWeight w) const {
    w.k *= 2;
    const auto scale = stored_.find(prefix + ".weight_scale");
    if (scale != stored_.end() && scale->second.dtype == DType::kU8) {
      w.format = WeightFormat::kMxfp4;
      w.readable = add(prefix + ".weight_scale", &w);
    } else if (add(prefix + ".weight_scale", &w)) {
      w.format = WeightFormat::kNvfp4;
      w.readable = add(prefix + ".weight_scale_2", &w) || add(prefix + ".weight_global_scale", &w);
      add(prefix + ".input_scale", &w);
    } else {
      w.format = WeightFormat::kMxfp4;
      w.readable = add(prefix + ".scale", &w);
    }
    return w;
  }

  const StoredTensors& stored_;
};

// Resolves a kK without a codebook to the one for which a GPU has the fastest kernels. Experts of 5
// bits have no faster one than bnf, whose error is the smallest. On NVFP4 weights e2m1 loses 3 dB
// less than e4m3.
Target resolved(Target target, const WeightName& id, WeightFormat source) {
  if (target.kind != Target::Kind::kKbit || target.book != Target::Book::kDefault) return target;
  const bool fp4 = source == WeightFormat::kMxfp4 || source == WeightFormat::kNvfp4;
  const bool experts = id.part == WeightPart::kExperts;
  target.book = fp4 && target.bits == 4       ? Target::Book::kE2m1
                : experts && target.bits == 5 ? Target::Book::kBnf
                                              : Target::Book::kE4m3;
  return target;
}

// True when the source is in the target's format: nothing to do.
bool already(const SourceWeight& w, const Target& target) {
  return (target.kind == Target::Kind::kFp8 && w.format == WeightFormat::kFp8Block) ||
         (target.kind == Target::Kind::kBF16 && w.format == WeightFormat::kBF16) ||
         (target.kind == Target::Kind::kNvfp4 && w.format == WeightFormat::kNvfp4);
}

// Why a weight cannot be converted as the recipe requires; empty if it can.
std::string obstacle(const SourceWeight& w, const WeightName& id, const Target& target,
                     int64_t o_groups) {
  if (!w.readable) return "not in a readable format";
  const int64_t group = target.kind == Target::Kind::kMxfp4 ? kMxfp4Group : kNvfp4Group;
  if (is_fp4(target) && w.k % group != 0)
    return fmt::format("k={} is not a multiple of {}", w.k, group);
  if (target.kind == Target::Kind::kKbit) {
    if (w.k % kKbitBlock != 0) return fmt::format("k={} is not a multiple of {}", w.k, kKbitBlock);
    if (w.format == WeightFormat::kKbit && w.bits == target.bits)
      return fmt::format("is already k-bit with {} bits", w.bits);
  }
  if (target.kind == Target::Kind::kFp8 && id.part == WeightPart::kAttention && id.leaf == "wo_a" &&
      o_groups > 1 && w.n / o_groups % kFp8BlockSize != 0)
    return fmt::format("groups of {} rows are not a multiple of the fp8 block size {}",
                       w.n / o_groups, kFp8BlockSize);
  return "";
}

std::vector<OutputTensor> output_tensors(const std::string& prefix, int64_t n, int64_t k,
                                         const Target& target) {
  const std::string weight = prefix + ".weight", scale = prefix + ".scale";
  if (target.kind == Target::Kind::kBF16) return {{weight, meta_of(DType::kBF16, {n, k})}};
  if (target.kind == Target::Kind::kFp8)
    return {
        {weight, meta_of(DType::kE4M3, {n, k})},
        {scale, meta_of(DType::kE8M0, {ceil_div(n, kFp8BlockSize), ceil_div(k, kFp8BlockSize)})}};
  if (target.kind == Target::Kind::kMxfp4)
    return {{weight, meta_of(DType::kU8, {n, k / 2})},
            {scale, meta_of(DType::kE8M0, {n, k / kMxfp4Group})}};
  if (target.kind == Target::Kind::kNvfp4)
    return {{weight, meta_of(DType::kU8, {n, k / 2})},
            {prefix + ".weight_scale", meta_of(DType::kE4M3, {n, k / kNvfp4Group})},
            {prefix + ".weight_scale_2", meta_of(DType::kF32, {})}};
  return {{weight, meta_of(DType::kI32, {n, k / kKbitBlock, target.bits})},
          {scale, meta_of(DType::kU8, {n, k / kKbitBlock})},
          {prefix + ".codebook", meta_of(DType::kF32, {int64_t{1} << target.bits})},
          {prefix + ".scale_2", meta_of(DType::kF32, {})}};
}

void copy_tensors(const StoredTensors& stored, const std::vector<std::string>& names,
                  OutputItem* item) {
  for (const std::string& tensor : names) {
    const TensorMeta& meta = stored.at(tensor);
    item->source_bytes += meta.bytes();
    // Slices of stacked experts have the strides of the stack; in a file they are contiguous.
    item->tensors.push_back(
        {tensor, TensorMeta::contiguous(
                     meta.dtype, std::span(meta.shape.data(), static_cast<size_t>(meta.rank)))});
  }
}

OutputItem weight_item(const StoredTensors& stored, const std::string& prefix, WeightName id,
                       const SourceWeight& w, const Rule* rule, int64_t o_groups) {
  OutputItem item{.name = prefix,
                  .is_weight = w.readable,
                  .id = id,
                  .source = w.format,
                  .source_bits = w.bits,
                  .n = w.n,
                  .k = w.k};
  copy_tensors(stored, w.names, &item);
  if (rule == nullptr || rule->target.kind == Target::Kind::kKeep || already(w, rule->target))
    return item;
  item.kept = obstacle(w, id, rule->target, o_groups);
  if (!item.kept.empty()) return item;
  item.target = resolved(rule->target, id, w.format);
  item.tensors = output_tensors(prefix, w.n, w.k, item.target);
  return item;
}

}  // namespace

OutputTensor file_tensor(const OutputItem& item, const OutputTensor& tensor) {
  if (!is_fp4(item.target)) return tensor;
  const std::string leaf = tensor.name.substr(item.name.size());
  if (leaf == ".weight") return {item.name + ".weight_packed", tensor.meta};
  if (leaf == ".weight_scale_2")
    return {item.name + ".weight_global_scale", meta_of(DType::kF32, {1})};
  OutputTensor scale{item.name + ".weight_scale", tensor.meta};
  if (scale.meta.dtype == DType::kE8M0) scale.meta.dtype = DType::kU8;
  return scale;
}

int64_t OutputItem::bytes() const {
  int64_t sum = 0;
  for (const OutputTensor& tensor : tensors) sum += tensor.meta.bytes();
  return sum;
}

OutputItem kept_item(const StoredTensors& stored, const OutputItem& item, std::string why) {
  const std::string prefix = item.name;
  const SourceWeight w = Source(stored).weight(prefix, stored.at(prefix + ".weight"));
  OutputItem kept = weight_item(stored, prefix, item.id, w, nullptr, 1);
  kept.kept = std::move(why);
  return kept;
}

ConvertList convert_list(const StoredTensors& stored, const Recipe& recipe, int64_t o_groups) {
  ConvertList list;
  std::set<std::string> taken;  // tensors that belong to a weight
  std::set<const Rule*> followed;
  const Source source(stored);
  for (const auto& [tensor, meta] : stored) {
    if (tensor.size() <= kWeight.size() || !std::string_view(tensor).ends_with(kWeight)) continue;
    const std::string prefix = tensor.substr(0, tensor.size() - kWeight.size());
    const WeightName id = weight_name(prefix);
    if (id.part == WeightPart::kOther) continue;
    const Rule* rule = recipe.rule_for(id);
    if (rule != nullptr) followed.insert(rule);
    const SourceWeight w = source.weight(prefix, meta);
    taken.insert(w.names.begin(), w.names.end());
    list.items.push_back(weight_item(stored, prefix, id, w, rule, o_groups));
  }
  for (const auto& [tensor, meta] : stored) {
    if (taken.count(tensor) != 0) continue;
    OutputItem item{.name = tensor};
    copy_tensors(stored, {tensor}, &item);
    list.items.push_back(std::move(item));
  }
  std::sort(list.items.begin(), list.items.end(),
            [](const OutputItem& a, const OutputItem& b) { return natural_less(a.name, b.name); });
  for (const OutputItem& item : list.items) {
    list.source_bytes += item.source_bytes;
    list.bytes += item.bytes();
  }
  for (const Rule& rule : recipe.rules) {
    if (followed.count(&rule) == 0) list.idle.push_back(rule.where);
  }
  return list;
}

}  // namespace dsv4
