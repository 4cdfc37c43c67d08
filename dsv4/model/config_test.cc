#include "dsv4/model/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/model/schedule.h"

namespace dsv4 {
namespace {

using Json = nlohmann::json;

// The released Flash config (docs/spec/dsv4.md 1.1, 1.2), with its 44 ratios.
Json flash() {
  Json config = Json::parse(R"({
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1, "hc_mult": 4, "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6, "head_dim": 512, "qk_rope_head_dim": 64, "num_key_value_heads": 1, "hidden_act": "silu",
    "swiglu_limit": 10.0, "index_n_heads": 64, "index_head_dim": 128, "initializer_range": 0.02,
    "max_position_embeddings": 1048576, "n_shared_experts": 1, "num_experts_per_tok": 6, "norm_topk_prob": true,
    "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "num_hash_layers": 3,
    "num_nextn_predict_layers": 1, "o_lora_rank": 1024, "sliding_window": 128, "rms_norm_eps": 1e-6,
    "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32,
                     "beta_slow": 1},
    "quantization_config": {"quant_method": "fp8"}, "expert_dtype": "fp4", "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "transformers_version": "4.57.1", "use_cache": true, "vocab_size": 129280,
    "hidden_size": 4096, "num_hidden_layers": 43, "num_attention_heads": 64, "q_lora_rank": 1024, "o_groups": 8,
    "index_topk": 512, "moe_intermediate_size": 2048, "n_routed_experts": 256, "routed_scaling_factor": 1.5})");
  Json ratios = {0, 0};
  for (int i = 0; i < 20; ++i) ratios.insert(ratios.end(), {4, 128});
  ratios.insert(ratios.end(), {4, 0});
  config["compress_ratios"] = ratios;
  return config;
}

std::string error_of(const Json& config) {
  try {
    parse_config(config.dump(), "config.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    return error.what();
  }
  return "accepted";
}

TEST(Config, ReadsFlash) {
  const ModelConfig c = parse_config(flash().dump(), "config.json");
  EXPECT_EQ(c.hidden_size, 4096);
  EXPECT_EQ(c.rope_dim, 64);
  EXPECT_EQ(c.mtp_layers, 1);
  EXPECT_EQ(c.eos, std::vector<int32_t>{1});
  EXPECT_TRUE(c.yarn.on);
  EXPECT_EQ(c.yarn.factor, 16);
  EXPECT_TRUE(c.unknown.empty());
  int count[3] = {};
  for (const LayerSpec& layer : layer_schedule(c)) ++count[static_cast<int>(layer.kind)];
  EXPECT_EQ(count[0], 2);
  EXPECT_EQ(count[1], 21);
  EXPECT_EQ(count[2], 20);
  EXPECT_EQ(std::count(c.hash_layers.begin(), c.hash_layers.end(), true), 3);
  EXPECT_NO_THROW(check_official_numerics(c));
}

// The keys of the later releases (docs/spec/dsv4.md 1.3).
TEST(Config, ReadsDspark) {
  Json json = flash();
  EXPECT_TRUE(parse_config(json.dump(), "config.json").dspark.empty());
  for (int i = 0; i < 2; ++i) json["compress_ratios"].push_back(0);
  json.update(Json::parse(R"({"dspark_block_size": 5, "dspark_markov_rank": 256,
      "dspark_noise_token_id": 128799, "dspark_target_layer_ids": [40, 41, 42]})"));
  const ModelConfig c = parse_config(json.dump(), "config.json");
  EXPECT_EQ(c.mtp_layers, 3) << "entries of compress_ratios after the layers";
  EXPECT_EQ(drafter_kind(c), DrafterKind::kDspark);
  EXPECT_EQ(c.dspark.block_size, 5);
  EXPECT_EQ(c.dspark.markov_rank, 256);
  EXPECT_EQ(c.dspark.noise, 128799);
  EXPECT_EQ(c.dspark.taps, (std::vector<int64_t>{40, 41, 42}));
  EXPECT_TRUE(c.unknown.empty());
  const auto with = [&](const char* key, const Json& value) {
    Json changed = json;
    changed[key] = value;
    return error_of(changed);
  };
  const std::string layers = "must be a list of layers from 0 to 42 in ascending order, got ";
  EXPECT_EQ(with("dspark_target_layer_ids", Json::parse("[40, 43]")),
            "config.json: dspark_target_layer_ids " + layers + "[40,43]");
  EXPECT_EQ(with("dspark_target_layer_ids", Json::parse("[41, 40]")),
            "config.json: dspark_target_layer_ids " + layers + "[41,40]");
  EXPECT_EQ(with("dspark_target_layer_ids", nullptr),
            "config.json: dspark_target_layer_ids is missing");
  EXPECT_EQ(with("dspark_block_size", 0),
            "config.json: dspark_block_size must be between 1 and 64, got 0");
  EXPECT_EQ(with("dspark_noise_token_id", 129280),
            "config.json: dspark_noise_token_id must be between 0 and 129279, got 129280");
}

TEST(Config, BothSpellingsAreEquivalent) {
  const ModelConfig a = load_config("tests/golden/hf/mixed/config.json");
  const ModelConfig b = load_config("tests/golden/hf/mixed_hf/config.json");
  EXPECT_EQ(a.ratios, b.ratios);
  EXPECT_EQ(a.hash_layers, b.hash_layers);
  EXPECT_EQ(a.rope_dim, b.rope_dim);
  EXPECT_EQ(a.yarn.on, b.yarn.on);
  EXPECT_EQ(a.yarn.original_positions, b.yarn.original_positions);
  EXPECT_EQ(a.compress_rope_theta, b.compress_rope_theta);
  EXPECT_TRUE(b.unknown.empty());
}

TEST(Config, NestedRopeValuesTakePrecedence) {
  Json config = flash();
  config["rope_parameters"] = {{"main", {{"rope_type", "default"}, {"rope_theta", 5000}}},
                               {"compress",
                                {{"rope_type", "yarn"},
                                 {"rope_theta", 77000},
                                 {"factor", 8},
                                 {"original_max_position_embeddings", 4096},
                                 {"attention_factor", 1.0}}}};
  const ModelConfig c = parse_config(config.dump(), "config.json");
  EXPECT_EQ(c.rope_theta, 5000);
  EXPECT_EQ(c.compress_rope_theta, 77000);
  EXPECT_EQ(c.yarn.factor, 8);
  EXPECT_EQ(c.yarn.original_positions, 4096);
  EXPECT_EQ(c.yarn.beta_fast, 32);
}

TEST(Config, NoScalingMeansNoYarn) {
  Json config = flash();
  config["rope_scaling"] = nullptr;
  EXPECT_FALSE(parse_config(config.dump(), "config.json").yarn.on);
}

TEST(Config, ListsUnknownKeys) {
  Json config = flash();
  config["flux_capacitor"] = 1.21;
  EXPECT_EQ(parse_config(config.dump(), "config.json").unknown,
            std::vector<std::string>{"flux_capacitor"});
}

TEST(Config, ListsUnknownRopeKeys) {
  Json config = flash();
  config["rope_scaling"]["stretch"] = 2;
  EXPECT_EQ(parse_config(config.dump(), "config.json").unknown,
            std::vector<std::string>{"rope_scaling.stretch"});
}

TEST(Config, ReportsInvalidValues) {
  const auto with = [](const char* key, const Json& value) {
    Json config = flash();
    config[key] = value;
    return error_of(config);
  };
  const auto without = [](const char* key) {
    Json config = flash();
    config.erase(key);
    return error_of(config);
  };
  EXPECT_EQ(without("hidden_size"), "config.json: hidden_size is missing");
  EXPECT_EQ(without("compress_ratios"), "config.json: compress_ratios (or layer_types) is missing");
  EXPECT_EQ(with("hidden_size", "wide"),
            "config.json: hidden_size must be an integer, got \"wide\"");
  EXPECT_EQ(with("hidden_size", -4),
            "config.json: hidden_size must be between 1 and 1048576, got -4");
  EXPECT_EQ(with("hidden_size", 18446744073709551615ull),
            "config.json: hidden_size must be between 1 and 1048576, got 18446744073709551615");
  EXPECT_EQ(with("head_dim", 512.5), "config.json: head_dim must be an integer, got 512.5");
  EXPECT_EQ(with("rms_norm_eps", "tiny"),
            "config.json: rms_norm_eps must be a number, got \"tiny\"");
  EXPECT_EQ(with("compress_ratios", {0, 4}),
            "config.json: the layer schedule has 2 entries for 43 layers");
  EXPECT_EQ(with("compress_ratios", 4), "config.json: compress_ratios must be a list, got 4");
  EXPECT_EQ(with("o_groups", 7), "config.json: num_attention_heads = 64 is not a multiple of 7");
  EXPECT_EQ(with("scoring_func", "softmax"),
            "config.json: scoring_func must be \"sqrtsoftplus\" (nothing else is supported), got "
            "\"softmax\"");
  EXPECT_EQ(with("num_experts_per_tok", 257),
            "config.json: num_experts_per_tok must be between 1 and 256, got 257");
  EXPECT_EQ(with("eos_token_id", {1, 129280}),
            "config.json: eos_token_id must be token ids in the vocabulary, got [1,129280]");
  EXPECT_EQ(with("rope_scaling", {{"type", "linear"}}),
            "config.json: rope_scaling: type must be \"yarn\" or \"default\", got \"linear\"");
  EXPECT_EQ(with("rope_scaling", {{"type", "yarn"}, {"attention_factor", 1.2}}),
            "config.json: rope_scaling: attention_factor must be 1.0 (nothing else is supported), "
            "got 1.2");
  EXPECT_EQ(with("rope_scaling", {{"factor", 16}}), "config.json: rope_scaling: type is missing");
  EXPECT_EQ(without("swiglu_limit"), "config.json: swiglu_limit is missing");
  EXPECT_EQ(with("rope_theta", 1),
            "config.json: rope_theta must be between 1.0001 and 1000000000000, got 1");
  EXPECT_EQ(with("index_head_dim", 32),
            "config.json: index_head_dim = 32 is smaller than qk_rope_head_dim = 64");
}

TEST(Config, RejectsInvalidJson) {
  for (const char* text : {"", "{", "[1]", "null", "\"x\"", "{\"a\":1}}"}) {
    EXPECT_THROW(parse_config(text, "config.json"), Error) << text;
  }
  EXPECT_THROW(load_config("no/such/config.json"), Error);
  const std::string deep = "{\"hidden_size\":" + std::string(1000000, '[');
  EXPECT_THROW(parse_config(deep, "config.json"), Error);
}

}  // namespace
}  // namespace dsv4
