"""Configuration: the official config.json keys are the only source; symbols follow the spec."""

import json
from dataclasses import dataclass
from pathlib import Path

DEMO = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "compress_ratios": [0, 4, 128, 4, 128, 0],  # the last one is that of the MTP block
    "compress_rope_theta": 160000,
    "expert_dtype": "fp4",
    "hc_eps": 1e-6,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "head_dim": 512,
    "hidden_act": "silu",
    "hidden_size": 256,
    "index_head_dim": 128,
    "index_n_heads": 4,
    "index_topk": 64,
    "initializer_range": 0.02,
    "max_position_embeddings": 65536,
    "moe_intermediate_size": 256,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hash_layers": 1,
    "num_hidden_layers": 5,
    "num_key_value_heads": 1,
    "num_nextn_predict_layers": 1,
    "o_groups": 2,
    "o_lora_rank": 128,
    "q_lora_rank": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    },
    "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "sliding_window": 128,
    "swiglu_limit": 10.0,
    "tie_word_embeddings": False,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.57.1",
    "use_cache": True,
    "vocab_size": 1536,
}


@dataclass(frozen=True)
class Config:
    V: int            # vocabulary
    D: int            # hidden size
    L: int            # layers
    H: int            # query heads
    Q: int            # q-lora rank
    G: int            # output groups
    R: int            # o-lora rank
    E: int            # routed experts
    K: int            # experts per token
    I: int            # expert intermediate size
    ratios: tuple[int, ...]
    hash_layers: int
    HI: int           # indexer heads
    topk: int
    route_scale: float
    limit: float      # swiglu clamp
    theta: float
    compress_theta: float
    yarn_factor: float
    yarn_original: int
    beta_fast: float
    beta_slow: float
    sinkhorn: int
    hc_eps: float
    d: int = 512      # head dimension
    rd: int = 64      # rotated dimensions, the last of the head
    M: int = 4        # hyper-connection streams
    W: int = 128      # window
    DI: int = 128     # indexer head dimension

    @staticmethod
    def of(j: dict) -> "Config":
        yarn = j["rope_scaling"]
        return Config(
            V=j["vocab_size"], D=j["hidden_size"], L=j["num_hidden_layers"],
            H=j["num_attention_heads"], Q=j["q_lora_rank"], G=j["o_groups"], R=j["o_lora_rank"],
            E=j["n_routed_experts"], K=j["num_experts_per_tok"], I=j["moe_intermediate_size"],
            ratios=tuple(j["compress_ratios"]), hash_layers=j["num_hash_layers"],
            HI=j["index_n_heads"], topk=j["index_topk"], route_scale=j["routed_scaling_factor"],
            limit=j["swiglu_limit"], theta=j["rope_theta"],
            compress_theta=j["compress_rope_theta"], yarn_factor=yarn["factor"],
            yarn_original=yarn["original_max_position_embeddings"],
            beta_fast=yarn["beta_fast"], beta_slow=yarn["beta_slow"],
            sinkhorn=j["hc_sinkhorn_iters"], hc_eps=j["hc_eps"],
            d=j["head_dim"], rd=j["qk_rope_head_dim"],
            M=j["hc_mult"], W=j["sliding_window"], DI=j["index_head_dim"])

    @staticmethod
    def load(folder: Path) -> "Config":
        return Config.of(json.loads((folder / "config.json").read_text()))
