// Which weight of the model an official name denotes (docs/spec/dsv4.md 10.2): the vocabulary of
// recipes, plans and ledgers.
//
//   layers.3.ffn.experts.17.w1   experts         layer 3   leaf w1
//   mtp.0.attn.wq_b              attn            drafter   leaf wq_b
//   head                         head            -         -
//   layers.3.hc_attn_fn          other: not addressable by a recipe

#pragma once

#include <span>
#include <string_view>

#include "dsv4/model/weight_table.h"

namespace dsv4 {

// The matrices of a part, in the order of the weight table; empty: the part is one matrix.
std::span<const std::string_view> leaves(WeightPart part);

struct WeightName {
  WeightPart part = WeightPart::kOther;
  int layer = -1;         // -1: outside the layers, or in the drafter
  bool drafter = false;   // mtp.*
  std::string_view leaf;  // one of leaves(part), points to static text
};

// `prefix` is the name of a weight without ".weight".
WeightName weight_name(std::string_view prefix);

// The part of a tensor that is not a matrix, such as "layers.3.attn_norm.weight"; kOther for a name
// that the model does not have.
WeightPart part_of_tensor(std::string_view name);

// True for the weights that official checkpoints store as FP8: attention projections, the
// indexer's wq_b, shared experts, the drafter's projections.
bool is_dense(const WeightName& weight);

}  // namespace dsv4
