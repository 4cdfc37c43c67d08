#include "dsv4/convert/weight_name.h"

#include <algorithm>
#include <charconv>

namespace dsv4 {
namespace {

constexpr std::string_view kExpertLeaves[] = {"w1", "w2", "w3"};
constexpr std::string_view kAttentionLeaves[] = {"wq_a", "wq_b", "wkv", "wo_a", "wo_b"};
constexpr std::string_view kIndexerLeaves[] = {"wq_b", "weights_proj"};
constexpr std::string_view kCompressorLeaves[] = {"wkv", "wgate"};
constexpr std::string_view kDrafterLeaves[] = {"e_proj", "h_proj", "main_proj"};

struct PartRow {
  const char* name;
  std::string_view place;  // what stands in front of the leaf inside a layer
  std::span<const std::string_view> leaves;
};

// In the order of WeightPart. The indexer's compressor is the one part with a second place.
constexpr PartRow kParts[] = {
    {"experts", "ffn.experts.", kExpertLeaves},
    {"shared_experts", "ffn.shared_experts.", kExpertLeaves},
    {"attn", "attn.", kAttentionLeaves},
    {"indexer", "attn.indexer.", kIndexerLeaves},
    {"compressor", "attn.compressor.", kCompressorLeaves},
    {"gate", "ffn.gate", {}},
    {"mtp", "", kDrafterLeaves},
    {"head", "", {}},
    {"embed", "", {}},
    {"other", "", {}},
};
static_assert(std::size(kParts) == kNumWeightParts);
constexpr std::string_view kIndexerCompressor = "attn.indexer.compressor.";

bool take(std::string_view* text, std::string_view prefix) {
  if (text->substr(0, prefix.size()) != prefix) return false;
  text->remove_prefix(prefix.size());
  return true;
}

// "12." in front of `text`; -1 when there is no such number.
int take_number(std::string_view* text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  const auto digits = static_cast<size_t>(end - text->data());
  if (error != std::errc() || number < 0 || digits >= text->size() || (*text)[digits] != '.')
    return -1;
  text->remove_prefix(digits + 1);
  return number;
}

bool is_leaf(WeightPart part, std::string_view leaf, WeightName* weight) {
  const auto all = leaves(part);
  const auto at = std::find(all.begin(), all.end(), leaf);
  if (at == all.end()) return false;
  weight->part = part;
  weight->leaf = *at;
  return true;
}

// `rest` is a name inside a layer, such as "attn.wq_b".
void name_in_layer(std::string_view rest, WeightName* weight) {
  if (rest == kParts[static_cast<int>(WeightPart::kRouter)].place) {
    weight->part = WeightPart::kRouter;
    return;
  }
  if (weight->drafter && is_leaf(WeightPart::kDrafter, rest, weight)) return;
  for (const WeightPart part :
       {WeightPart::kExperts, WeightPart::kSharedExperts, WeightPart::kAttention,
        WeightPart::kIndexer, WeightPart::kCompressor}) {
    std::string_view leaf = rest;
    if (!take(&leaf, kParts[static_cast<int>(part)].place) &&
        !(part == WeightPart::kCompressor && take(&leaf, kIndexerCompressor)))
      continue;
    if (part == WeightPart::kExperts && take_number(&leaf) < 0) continue;
    if (is_leaf(part, leaf, weight)) return;
  }
}

}  // namespace

const char* name(WeightPart part) {
  return kParts[static_cast<int>(part)].name;
}

std::span<const std::string_view> leaves(WeightPart part) {
  return kParts[static_cast<int>(part)].leaves;
}

WeightName weight_name(std::string_view prefix) {
  WeightName weight;
  if (prefix == "head") {
    weight.part = WeightPart::kHead;
  } else if (prefix == "embed") {
    weight.part = WeightPart::kEmbed;
  } else if (take(&prefix, "mtp.")) {
    weight.drafter = true;
    if (take_number(&prefix) >= 0) name_in_layer(prefix, &weight);
  } else if (take(&prefix, "layers.")) {
    weight.layer = take_number(&prefix);
    if (weight.layer >= 0) name_in_layer(prefix, &weight);
  }
  return weight;
}

bool is_dense(const WeightName& weight) {
  return weight.part == WeightPart::kAttention || weight.part == WeightPart::kSharedExperts ||
         weight.part == WeightPart::kDrafter ||
         (weight.part == WeightPart::kIndexer && weight.leaf == "wq_b");
}

}  // namespace dsv4
