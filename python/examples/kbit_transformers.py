"""A transformers model with weights of 3 to 5 bits: quantize_model() replaces the linear layers and the experts.

    python3 kbit_transformers.py llama        # or qwen_moe: a tiny random model, then the same with few bits

The two lines that matter for a model of your own:

    from dsv4_kernels import quantize_model
    quantize_model(model, linear="k4-e4m3", experts="k3-e4m3")
"""

import sys

import torch
from dsv4_kernels import KbitLinear, KbitMoE, quantize_model
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

SIZES = dict(vocab_size=128, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128)
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "qwen_moe": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, head_dim=32, num_experts=8, num_experts_per_tok=2,
                                                           moe_intermediate_size=64, norm_topk_prob=True)),
}


@torch.no_grad()
def run(name, tokens=16, linear="k5-e4m3", experts="k4-e4m3"):
    """Quantizes a random model of that kind and generates; returns what happened."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    prompt = torch.randint(0, 128, (2, 12))
    before = model(prompt).logits
    quantize_model(model, linear, experts)
    after = model(prompt).logits
    text = model.generate(prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
    count = lambda kind: sum(isinstance(module, kind) for module in model.modules())
    return {"kbit_linear": count(KbitLinear), "kbit_moe": count(KbitMoE), "tokens": text[:, 12:],
            "cosine": float(torch.nn.functional.cosine_similarity(before.flatten(), after.flatten(), dim=0))}


if __name__ == "__main__":
    for model in sys.argv[1:] or MODELS:
        print(model, run(model))
