"""Random tiny models of odd sizes: 1 to 16 heads of 2 to 256, hidden sizes of 1 to 257, windows of 1 to 500.

Where such a model runs, the logits are finite and those of chunks of 512 and of 7 tokens are the same to the last bit,
and `inspect` and `plan` know the model. Where it does not run (official numerics want groups of 64), an error says so for
both chunks.
"""

import json
import random
import struct

from outcome import Run


def config_of(rng):
    layers, rope = rng.randint(1, 4), 2 * rng.randint(1, 8)
    groups = rng.choice([1, 1, 2, 3])
    aligned = rng.random() < 0.4  # sizes that official numerics accept
    experts = rng.randint(1, 9)
    head = rng.choice([64, 128, 192]) + rope if aligned else rng.randint(rope, 130)
    return {"model_type": "deepseek_v4", "hidden_size": rng.randint(1, 257), "num_hidden_layers": layers,
            "vocab_size": rng.randint(41, 200), "num_attention_heads": groups * rng.randint(1, 5), "head_dim": head,
            "qk_rope_head_dim": rope, "q_lora_rank": rng.randint(1, 70), "o_groups": groups,
            "o_lora_rank": rng.randint(1, 40), "sliding_window": rng.choice([1, 2, 7, 64, rng.randint(1, 500)]),
            "index_n_heads": rng.randint(1, 9), "index_head_dim": rope + (128 - rope if aligned else rng.randint(0, 40)),
            "index_topk": rng.choice([1, 3, 64, 1000]), "n_routed_experts": experts,
            "num_experts_per_tok": rng.randint(1, experts), "moe_intermediate_size": rng.randint(1, 70),
            "n_shared_experts": rng.randint(1, 2), "hc_mult": rng.randint(1, 8), "hc_sinkhorn_iters": rng.randint(1, 21),
            "max_position_embeddings": rng.choice([700, 65536]), "hc_eps": rng.choice([0, 1e-6, 1e-3]),
            "rms_norm_eps": rng.choice([1e-6, 1e-3]), "routed_scaling_factor": rng.choice([0, 1.5, 100]),
            "swiglu_limit": rng.choice([0.1, 10]), "num_hash_layers": rng.randint(0, layers), "norm_topk_prob": True,
            "rope_theta": rng.choice([1.5, 10000, 1e9]),
            "compress_ratios": [rng.choice([0, 4, 128]) for _ in range(layers)]}


def attention_shapes(c, ratio):
    """Of one layer (docs/spec/dsv4.md 10.2)."""
    hidden, heads, head, low = c["hidden_size"], c["num_attention_heads"], c["head_dim"], c["q_lora_rank"]
    groups, wide = c["o_groups"], 2 if ratio == 4 else 1
    yield from {"attn_sink": [heads], "kv_norm.weight": [head], "q_norm.weight": [low], "wkv.weight": [head, hidden],
                "wo_a.weight": [groups * c["o_lora_rank"], heads * head // groups],
                "wo_b.weight": [hidden, groups * c["o_lora_rank"]], "wq_a.weight": [low, hidden],
                "wq_b.weight": [heads * head, low]}.items()
    places = [("", head)] if ratio else []
    if ratio == 4:
        places.append(("indexer.", c["index_head_dim"]))
        yield "indexer.weights_proj.weight", [c["index_n_heads"], hidden]
        yield "indexer.wq_b.weight", [c["index_n_heads"] * c["index_head_dim"], low]
    for where, size in places:
        yield where + "compressor.ape", [ratio, wide * size]
        yield where + "compressor.norm.weight", [size]
        yield where + "compressor.wgate.weight", [wide * size, hidden]
        yield where + "compressor.wkv.weight", [wide * size, hidden]


def shapes_of(c):
    hidden, streams, vocab = c["hidden_size"], c["hc_mult"], c["vocab_size"]
    yield from {"embed.weight": [vocab, hidden], "head.weight": [vocab, hidden], "norm.weight": [hidden],
                "hc_head_base": [streams], "hc_head_fn": [streams, streams * hidden], "hc_head_scale": [1]}.items()
    for layer, ratio in enumerate(c["compress_ratios"]):
        at = f"layers.{layer}."
        for name, shape in attention_shapes(c, ratio):
            yield f"{at}attn.{name}", shape
        for part in ("attn", "ffn"):
            yield f"{at}{part}_norm.weight", [hidden]
            yield f"{at}hc_{part}_base", [(2 + streams) * streams]
            yield f"{at}hc_{part}_fn", [(2 + streams) * streams, streams * hidden]
            yield f"{at}hc_{part}_scale", [3]
        yield f"{at}ffn.gate.weight", [c["n_routed_experts"], hidden]
        if layer < c["num_hash_layers"]:
            yield f"{at}ffn.gate.tid2eid", [vocab, c["num_experts_per_tok"]]
        else:
            yield f"{at}ffn.gate.bias", [c["n_routed_experts"]]
        experts = [(f"experts.{e}", 1) for e in range(c["n_routed_experts"])]
        for expert, times in experts + [("shared_experts", c["n_shared_experts"])]:
            width = times * c["moe_intermediate_size"]
            for name, shape in (("w1", [width, hidden]), ("w2", [hidden, width]), ("w3", [width, hidden])):
                yield f"{at}ffn.{expert}.{name}.weight", shape


def write_model(rng, config, folder):
    header, data, at = {}, [], 0
    for name, shape in shapes_of(config):
        count = 1
        for dim in shape:
            count *= dim
        if name.endswith("tid2eid"):
            experts, each = config["n_routed_experts"], shape[1]
            values = [(row + k) % experts for row in range(shape[0]) for k in range(each)]
            dtype, packed = "I64", struct.pack(f"<{count}q", *values)
        else:
            width = 1.0 if "norm" in name or name.endswith("scale") else shape[-1] ** -0.5
            values = [width * (1.0 if "norm" in name else rng.gauss(0, 1)) for _ in range(count)]
            dtype, packed = "F32", struct.pack(f"<{count}f", *values)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(packed)]}
        data.append(packed)
        at += len(packed)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))
    (folder / "config.json").write_text(json.dumps(config))


def case(rng, place):
    config, model = config_of(rng), place.folder / "model"
    write_model(rng, config, model)
    ids = ",".join(str(rng.randrange(config["vocab_size"])) for _ in range(rng.choice([1, 3, 130, 600])))
    return json.dumps(config), runs(rng, model, ids, place.folder)


def runs(rng, model, ids, folder):
    numerics = rng.choice(["exact", "official"])
    whole, parts = folder / "whole", folder / "parts"

    def same(done):
        if whole.exists() != parts.exists():
            return "one chunk size runs, the other does not"
        return "" if done.code or whole.read_bytes() == parts.read_bytes() else "chunks of 512 and 7 differ"

    def known(done):
        return f"refuses a model that is whole: {done.err.decode()}" if done.code else ""
    logits = ["eval", "logits", model, "--ids", ids, "--numerics", numerics]
    yield Run([*logits, "--chunk", "512", "-o", whole])
    yield Run([*logits, "--chunk", "7", "-o", parts], judge=same)
    yield Run(["inspect", model], judge=known)
    yield rng.choice([Run(["plan", model, "--context", "500", "--numerics", "exact"], judge=known),
                      Run(["eval", "ppl", model, "--ids", ids, "--numerics", numerics, "--json"]),
                      Run(["quantize", model, "--experts", "k4", "--dense", "k5", "-o", folder / "out"], judge=known)])
