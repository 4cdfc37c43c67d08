// A model folder that costs nothing to make and to run: Flash's config with small dims, every kind
// of layer, and the official tensors filled with zeros.

#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>

#include "dsv4/loader/safetensors.h"
#include "dsv4/model/released.h"
#include "dsv4/model/tensor_list.h"
#include "tests/harness/temp_folder.h"

namespace dsv4::test {

inline std::string tiny_config_json() {
  auto json = nlohmann::json::parse(released_config_json("flash"));
  json.update(nlohmann::json::parse(R"({
    "hidden_size": 128, "num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 4, 0],
    "num_hash_layers": 2, "vocab_size": 40, "num_attention_heads": 4, "head_dim": 128,
    "q_lora_rank": 192, "o_groups": 2, "o_lora_rank": 128, "sliding_window": 48,
    "index_n_heads": 2, "index_head_dim": 64, "index_topk": 32, "n_routed_experts": 3,
    "num_experts_per_tok": 2, "moe_intermediate_size": 96, "n_shared_experts": 2})"));
  return json.dump();
}

inline ModelConfig tiny_config() {
  return parse_config(tiny_config_json(), "tiny config");
}

// V4-Pro's kinds of layers in small dims, chosen so that ranks get unequal shares of everything.
inline ModelConfig small_pro_config() {
  auto json = nlohmann::json::parse(released_config_json("pro"));
  json.update(nlohmann::json::parse(R"({
    "hidden_size": 384, "num_hidden_layers": 4, "compress_ratios": [128, 4, 0, 4, 0],
    "num_hash_layers": 1, "vocab_size": 700, "num_attention_heads": 10, "head_dim": 128,
    "q_lora_rank": 128, "o_groups": 5, "o_lora_rank": 128, "sliding_window": 48,
    "index_n_heads": 2, "index_head_dim": 64, "index_topk": 32, "n_routed_experts": 5,
    "num_experts_per_tok": 3, "moe_intermediate_size": 640, "n_shared_experts": 1})"));
  return parse_config(json.dump(), "small pro config");
}

// With a DSpark drafter of three stages.
inline std::string tiny_dspark_json() {
  auto json = nlohmann::json::parse(tiny_config_json());
  json.update(nlohmann::json::parse(R"({
    "compress_ratios": [0, 4, 128, 4, 0, 0, 0], "dspark_block_size": 5, "dspark_markov_rank": 24,
    "dspark_noise_token_id": 39, "dspark_target_layer_ids": [0, 2, 3]})"));
  return json.dump();
}

inline ModelConfig tiny_dspark_config() {
  return parse_config(tiny_dspark_json(), "tiny config with DSpark");
}

// The tiny config with a drafter of this kind.
inline ModelConfig tiny_config_of(DrafterKind drafter) {
  return drafter == DrafterKind::kDspark ? tiny_dspark_config() : tiny_config();
}

// config.json and model.safetensors with these tensors, all zero but the scales, which are 1 (the
// zero byte stands for 2^-127, and subnormal numbers are slow).
inline void write_zero_model(const TempFolder& folder, const std::vector<NamedTensor>& list,
                             const std::string& config = tiny_config_json()) {
  int64_t largest = 0;
  for (const NamedTensor& tensor : list) largest = std::max(largest, tensor.meta.bytes());
  const Buffer zeros(DType::kU8, {largest}), ones(DType::kU8, {largest});
  std::fill_n(ones.as<uint8_t>(), largest, uint8_t{127});
  std::vector<std::pair<std::string, ConstTensorView>> tensors;
  for (const NamedTensor& tensor : list) {
    const Buffer& values = tensor.meta.dtype == DType::kE8M0 ? ones : zeros;
    tensors.emplace_back(tensor.name, ConstTensorView(tensor.meta, values.view().data));
  }
  write_safetensors(folder.file("model.safetensors"), tensors);
  folder.write("config.json", config);
}

}  // namespace dsv4::test
