#!/usr/bin/env python3
"""Golden vectors from transformers' DeepseekV4ForCausalLM (float32, CPU, eager attention).

Writes, for each random tiny configuration, a checkpoint with official tensor names and the logits that
transformers computes for one prompt. Prompts are searched until no top-k decision (indexer, router) is
close to a tie and the float32 logits agree with a float64 run of the same model.

    make_hf_goldens.py --out tests/golden/hf [--only NAME ...]
"""
import argparse
import contextlib
import json
import math
import os
import shutil
import tempfile

import torch
import transformers
from safetensors.torch import save_file
from transformers import DeepseekV4ForCausalLM
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as dsv4

LOGIT_TOL = 2e-5  # float32 against float64
GAP_TOL = 3e-5  # gap between the k-th and (k+1)-th score, in standard deviations of the row

BASE = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 1048576,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_key_value_heads": 1,
    "num_nextn_predict_layers": 0,
    "rms_norm_eps": 1e-6,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "use_cache": True,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32,
                     "beta_slow": 1},
}

# name -> (seed, prompt length, configuration)
CASES = {
    # All three layer kinds, one hash layer, window 16.
    "mixed": (1, 600, dict(
        vocab_size=97, hidden_size=64, num_hidden_layers=3, compress_ratios=[0, 4, 128], num_hash_layers=1,
        num_attention_heads=4, head_dim=32, qk_rope_head_dim=8, q_lora_rank=40, o_groups=2, o_lora_rank=12,
        sliding_window=16, index_n_heads=8, index_head_dim=16, index_topk=16, n_routed_experts=6,
        num_experts_per_tok=2, moe_intermediate_size=12, routed_scaling_factor=1.5, swiglu_limit=10.0)),
    # Only hash layers, hidden size 48, active clamp, trailing MTP entry (but no MTP tensors).
    "hash3": (2, 641, dict(
        vocab_size=150, hidden_size=48, num_hidden_layers=3, compress_ratios=[0, 4, 128, 0], num_hash_layers=3,
        num_attention_heads=6, head_dim=64, qk_rope_head_dim=16, q_lora_rank=32, o_groups=3, o_lora_rank=20,
        sliding_window=64, index_n_heads=8, index_head_dim=32, index_topk=24, n_routed_experts=9,
        num_experts_per_tok=3, moe_intermediate_size=10, routed_scaling_factor=2.5, swiglu_limit=1.5,
        num_nextn_predict_layers=1)),
    # Heads of 128, no hash layer, window 128, other RoPE bases and YaRN parameters.
    "hd128": (3, 700, dict(
        vocab_size=257, hidden_size=56, num_hidden_layers=2, compress_ratios=[128, 4], num_hash_layers=0,
        num_attention_heads=4, head_dim=128, qk_rope_head_dim=32, q_lora_rank=24, o_groups=2, o_lora_rank=16,
        sliding_window=128, index_n_heads=8, index_head_dim=64, index_topk=32, n_routed_experts=7,
        num_experts_per_tok=2, moe_intermediate_size=16, routed_scaling_factor=1.0, swiglu_limit=3.0,
        rope_theta=5000, compress_rope_theta=40000,
        rope_scaling={"type": "yarn", "factor": 8, "original_max_position_embeddings": 4096, "beta_fast": 16,
                      "beta_slow": 2})),
    # Two streams, few Sinkhorn steps, large epsilons, YaRN with its lower bound clamped to 0.
    "hc2": (4, 603, dict(
        vocab_size=131, hidden_size=80, num_hidden_layers=3, compress_ratios=[4, 128, 4], num_hash_layers=2,
        num_attention_heads=8, head_dim=32, qk_rope_head_dim=16, q_lora_rank=24, o_groups=4, o_lora_rank=8,
        sliding_window=32, index_n_heads=12, index_head_dim=16, index_topk=40, n_routed_experts=8,
        num_experts_per_tok=4, moe_intermediate_size=7, routed_scaling_factor=2.0, swiglu_limit=2.0,
        hc_mult=2, hc_sinkhorn_iters=5, hc_eps=1e-4, rms_norm_eps=1e-5,
        rope_scaling={"type": "yarn", "factor": 4, "original_max_position_embeddings": 128, "beta_fast": 32,
                      "beta_slow": 1})),
    # Pro-like schedule, index_topk larger than the number of entries, six of sixteen experts.
    "pro": (5, 777, dict(
        vocab_size=108, hidden_size=48, num_hidden_layers=4, compress_ratios=[128, 128, 4, 128, 0],
        num_hash_layers=3, num_attention_heads=8, head_dim=32, qk_rope_head_dim=16, q_lora_rank=32, o_groups=2,
        o_lora_rank=16, sliding_window=128, index_n_heads=8, index_head_dim=32, index_topk=512,
        n_routed_experts=16, num_experts_per_tok=6, moe_intermediate_size=6, routed_scaling_factor=2.5,
        swiglu_limit=10.0, num_nextn_predict_layers=1)),
    # One output group, top-1 routing, hidden size 72, very small index_topk.
    "top1": (6, 613, dict(
        vocab_size=101, hidden_size=72, num_hidden_layers=3, compress_ratios=[4, 0, 4], num_hash_layers=0,
        num_attention_heads=2, head_dim=32, qk_rope_head_dim=16, q_lora_rank=24, o_groups=1, o_lora_rank=24,
        sliding_window=32, index_n_heads=16, index_head_dim=16, index_topk=8, n_routed_experts=5,
        num_experts_per_tok=1, moe_intermediate_size=12, routed_scaling_factor=1.5, swiglu_limit=2.0)),
}
HF_STYLE = "mixed"  # also written with transformers' own names


def random_weights(c, g):
    """Checkpoint with official names; every tensor is random and none is trivial."""
    normal = lambda *shape, std=1.0, mean=0.0: mean + std * torch.randn(*shape, generator=g)
    linear = lambda out, inp, gain=1.0: normal(out, inp, std=gain / math.sqrt(inp))
    norm = lambda n: normal(n, std=0.25, mean=1.0)
    D, d, H, Q, M = (c[k] for k in ("hidden_size", "head_dim", "num_attention_heads", "q_lora_rank", "hc_mult"))
    V, E, I, K = (c[k] for k in ("vocab_size", "n_routed_experts", "moe_intermediate_size", "num_experts_per_tok"))
    G, R, IH, ID = (c[k] for k in ("o_groups", "o_lora_rank", "index_n_heads", "index_head_dim"))
    w = {"embed.weight": normal(V, D), "head.weight": linear(V, D), "norm.weight": norm(D),
         "hc_head_fn": linear(M, M * D), "hc_head_base": normal(M, std=0.5), "hc_head_scale": normal(1, std=0.2, mean=1.0)}

    def compressor(p, r, dim):
        n = dim * (2 if r == 4 else 1)
        w[p + "ape"] = normal(r, n, std=0.7)
        w[p + "norm.weight"] = norm(dim)
        w[p + "wkv.weight"] = linear(n, D)
        w[p + "wgate.weight"] = linear(n, D, 1.5)

    for l in range(c["num_hidden_layers"]):
        p, r = f"layers.{l}.", c["compress_ratios"][l]
        for s in ("attn", "ffn"):
            w[f"{p}{s}_norm.weight"] = norm(D)
            w[f"{p}hc_{s}_fn"] = linear((2 + M) * M, M * D)
            w[f"{p}hc_{s}_base"] = normal((2 + M) * M, std=0.7)
            w[f"{p}hc_{s}_scale"] = normal(3, std=0.3, mean=0.9)
        a = p + "attn."
        w[a + "attn_sink"] = normal(H, mean=1.0)
        w[a + "q_norm.weight"], w[a + "kv_norm.weight"] = norm(Q), norm(d)
        w[a + "wq_a.weight"], w[a + "wq_b.weight"] = linear(Q, D), linear(H * d, Q)
        w[a + "wkv.weight"] = linear(d, D)
        w[a + "wo_a.weight"] = linear(G * R, H * d // G, 2.0)
        w[a + "wo_b.weight"] = linear(D, G * R, 1.5)
        if r:
            compressor(a + "compressor.", r, d)
        if r == 4:
            w[a + "indexer.wq_b.weight"] = linear(IH * ID, Q)
            w[a + "indexer.weights_proj.weight"] = linear(IH, D)
            compressor(a + "indexer.compressor.", r, ID)
        f = p + "ffn."
        w[f + "gate.weight"] = linear(E, D)
        if l < c["num_hash_layers"]:
            w[f + "gate.tid2eid"] = torch.stack([torch.randperm(E, generator=g)[:K] for _ in range(V)])
        else:
            w[f + "gate.bias"] = normal(E, std=0.3)
        for e in [f"experts.{e}." for e in range(E)] + ["shared_experts."]:
            w[f"{f}{e}w1.weight"] = linear(I, D, 1.5)
            w[f"{f}{e}w3.weight"] = linear(I, D, 1.5)
            w[f"{f}{e}w2.weight"] = linear(D, I, 1.5)
    return {k: v.contiguous() for k, v in w.items()}


def load(folder, dtype=torch.float32):
    model, info = DeepseekV4ForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


@contextlib.contextmanager
def everything_float64(gaps):
    """transformers widens to float32 in places; make those float64. RoPE tables stay float32 (they are defined
    so). The gap at every top-k boundary is appended to `gaps`."""
    class Torch:
        float32 = torch.float64

        def __getattr__(self, name):
            return topk if name == "topk" else getattr(torch, name)

    rotary = dsv4.DeepseekV4RotaryEmbedding
    to_float, rope, tensor_topk = torch.Tensor.float, rotary.forward, torch.Tensor.topk

    def topk(x, k, **kw):
        if 0 < k < x.shape[-1]:
            rows = x.reshape(-1, x.shape[-1]).sort(-1, descending=True).values
            rows = rows[torch.isfinite(rows[:, k])]  # otherwise all finite candidates are selected
            fin = torch.isfinite(rows)
            mean = rows.where(fin, 0).sum(-1) / fin.sum(-1)
            std = ((rows - mean[:, None]).where(fin, 0).square().sum(-1) / fin.sum(-1)).sqrt()
            gaps.append(((rows[:, k - 1] - rows[:, k]) / std).min().item())
        return tensor_topk(x, k, **kw)

    def rope32(self, x, position_ids, layer_type=None):
        torch.Tensor.float = to_float
        out = rope(self, x, position_ids=position_ids, layer_type=layer_type)
        torch.Tensor.float = torch.Tensor.double
        return out

    dsv4.torch, torch.Tensor.float, rotary.forward, torch.Tensor.topk = Torch(), torch.Tensor.double, rope32, topk
    try:
        yield
    finally:
        dsv4.torch, torch.Tensor.float, rotary.forward, torch.Tensor.topk = torch, to_float, rope, tensor_topk


def make(name, out, tries, verbose):
    seed, T, overrides = CASES[name]
    config = BASE | overrides
    V = config["vocab_size"]
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")
    save_file(random_weights(config, torch.Generator().manual_seed(seed)),
              os.path.join(folder, "model.safetensors"))
    m32, m64 = load(folder), load(folder, torch.float64)
    for attempt in range(tries):
        ids = torch.randint(V, (1, T), generator=torch.Generator().manual_seed(1000 * seed + attempt))
        gaps = []
        with everything_float64(gaps):
            exact = m64(ids, use_cache=False).logits[0]
        assert exact.dtype == torch.float64
        if min(gaps, default=1.0) < GAP_TOL:
            if verbose:
                print(name, attempt, "gaps", *(f"{x:.1e}" for x in gaps), flush=True)
            continue
        logits = m32(ids, use_cache=False).logits[0]
        assert logits.dtype == torch.float32
        diff = (logits - exact).abs().max().item()
        if diff < LOGIT_TOL:
            break
        if verbose:
            print(name, attempt, "difference", diff, flush=True)
    else:
        raise SystemExit(f"{name}: no stable prompt in {tries} tries")

    with open(os.path.join(folder, "ids.txt"), "w") as f:
        f.writelines(" ".join(map(str, row.tolist())) + "\n" for row in ids[0].split(20))
    positions = torch.tensor(sorted(set(range(0, T, 8)) | set(range(T - 16, T))), dtype=torch.int32)
    save_file({"logits": logits[positions.long()].contiguous(), "positions": positions},
              os.path.join(folder, "logits.safetensors"))

    if name == HF_STYLE:
        other = folder + "_hf"
        with tempfile.TemporaryDirectory() as tmp:
            m32.save_pretrained(tmp, save_original_format=False)
            os.makedirs(other, exist_ok=True)
            for file in ("config.json", "model.safetensors"):
                shutil.copyfile(os.path.join(tmp, file), os.path.join(other, file))
    for file in ("model.safetensors", "logits.safetensors"):
        os.chmod(os.path.join(folder, file), 0o644)
    row = dict(name=name, T=T, attempt=attempt, diff=diff, gap=min(gaps, default=float("inf")),
               std=logits.std().item())
    print(row, flush=True)
    return row


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--only", nargs="*", default=list(CASES))
    ap.add_argument("--tries", type=int, default=200)
    ap.add_argument("--verbose", action="store_true")
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    print("transformers", transformers.__version__, "torch", torch.__version__)
    for name in args.only:
        make(name, args.out, args.tries, args.verbose)


if __name__ == "__main__":
    main()
