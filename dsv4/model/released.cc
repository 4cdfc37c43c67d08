#include "dsv4/model/released.h"

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

// Keys that both releases share.
constexpr const char* kShared = R"({
  "architectures": ["DeepseekV4ForCausalLM"],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "bos_token_id": 0,
  "compress_rope_theta": 160000,
  "eos_token_id": 1,
  "expert_dtype": "fp4",
  "hc_eps": 1e-06,
  "hc_mult": 4,
  "hc_sinkhorn_iters": 20,
  "head_dim": 512,
  "hidden_act": "silu",
  "index_head_dim": 128,
  "index_n_heads": 64,
  "initializer_range": 0.02,
  "max_position_embeddings": 1048576,
  "model_type": "deepseek_v4",
  "n_shared_experts": 1,
  "norm_topk_prob": true,
  "num_experts_per_tok": 6,
  "num_hash_layers": 3,
  "num_key_value_heads": 1,
  "num_nextn_predict_layers": 1,
  "o_lora_rank": 1024,
  "qk_rope_head_dim": 64,
  "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                          "scale_fmt": "ue8m0", "weight_block_size": [128, 128]},
  "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 16,
                   "original_max_position_embeddings": 65536, "type": "yarn"},
  "rope_theta": 10000,
  "scoring_func": "sqrtsoftplus",
  "sliding_window": 128,
  "swiglu_limit": 10.0,
  "tie_word_embeddings": false,
  "topk_method": "noaux_tc",
  "torch_dtype": "bfloat16",
  "use_cache": true,
  "vocab_size": 129280,
)";

constexpr const char* kFlash = R"(  "hidden_size": 4096,
  "num_hidden_layers": 43,
  "num_attention_heads": 64,
  "q_lora_rank": 1024,
  "o_groups": 8,
  "index_topk": 512,
  "moe_intermediate_size": 2048,
  "n_routed_experts": 256,
  "routed_scaling_factor": 1.5,
  "compress_ratios": [0, 0,
    4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128,
    4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128,
    4, 0]
}
)";

constexpr const char* kPro = R"(  "hidden_size": 7168,
  "num_hidden_layers": 61,
  "num_attention_heads": 128,
  "q_lora_rank": 1536,
  "o_groups": 16,
  "index_topk": 1024,
  "moe_intermediate_size": 3072,
  "n_routed_experts": 384,
  "routed_scaling_factor": 2.5,
  "compress_ratios": [128, 128,
    4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128,
    4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128,
    4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128,
    4, 0]
}
)";

}  // namespace

std::string released_config_json(const std::string& release) {
  if (release == "flash") return std::string(kShared) + kFlash;
  if (release == "pro") return std::string(kShared) + kPro;
  fail(ErrorCode::kBadInput, "unknown release '{}': want flash or pro", release);
}

ModelConfig released_config(const std::string& release, DrafterKind drafter) {
  ModelConfig config = parse_config(released_config_json(release), "built-in config of " + release);
  if (drafter != DrafterKind::kDspark) return config;
  const int64_t layers = config.num_layers;
  config.mtp_layers = 3;
  config.dspark = {.block_size = 5,
                   .markov_rank = 256,
                   .noise = 128799,
                   .taps = {layers - 3, layers - 2, layers - 1}};
  return config;
}

}  // namespace dsv4
