// Which weight of the model an official name stands for (spec dsv4.md 10.2): the vocabulary of
// recipes, plans and ledgers.
//
//   layers.3.ffn.experts.17.w1   experts         layer 3   leaf w1
//   mtp.0.attn.wq_b              attn            drafter   leaf wq_b
//   head                         head            -         -
//   layers.3.hc_attn_fn          other: nothing that a recipe could name

#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace dsv4 {

enum class WeightPart : uint8_t {
  kExperts,        // routed: w1 (gate), w3 (up), w2 (down)
  kSharedExperts,  // w1, w3, w2
  kAttention,      // wq_a, wq_b, wkv, wo_a, wo_b
  kIndexer,        // wq_b, weights_proj
  kCompressor,     // wkv, wgate, also those of the indexer's compressor
  kRouter,         // the gate
  kDrafter,        // e_proj, h_proj, main_proj of an mtp block; its experts count as experts
  kHead,
  kEmbed,
  kOther,
};
inline constexpr int kNumWeightParts = static_cast<int>(WeightPart::kOther) + 1;

const char* name(WeightPart part);                          // as recipes spell it: "attn", "gate"
std::span<const std::string_view> leaves(WeightPart part);  // empty: the part is one matrix

struct WeightName {
  WeightPart part = WeightPart::kOther;
  int layer = -1;         // -1: outside the layers, or in the drafter
  bool drafter = false;   // mtp.*
  std::string_view leaf;  // one of leaves(part), points to static text
};

// `prefix` is the name of a weight without ".weight".
WeightName weight_name(std::string_view prefix);

// True for the weights that official checkpoints store as FP8: attention projections, the
// indexer's wq_b, shared experts, the drafter's projections.
bool is_dense(const WeightName& weight);

}  // namespace dsv4
