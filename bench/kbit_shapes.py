"""Shapes that k-bit products are measured with (bench/peer_kbit.py): K_in, N, and their names in models."""

SHAPES = ((8192, 8192), (4096, 14336), (2048, 5120))  # of the short tables

# Dense weights, and those of routed experts where the notes on k-bit kernels measure an expert alone. Block-diagonal ones
# (wo_a of DeepSeek-V4) are no products of kbit_linear.
MODELS = {
    "Qwen3-Coder-Next": ((2048, 512, "expert's gate and up, k and v"), (512, 2048, "expert's down"), (2048, 5120, "dense gate and up"),
                         (5120, 2048, "dense down"), (2048, 4096, "q"), (4096, 2048, "o")),
    "GLM-4.7-Flash": ((2048, 1536, "expert's gate and up"), (1536, 2048, "expert's down"), (2048, 10240, "shared gate and up"),
                      (10240, 2048, "shared down")),
    "Llama-3 8B": ((4096, 14336, "gate, up"), (14336, 4096, "down"), (4096, 4096, "q, o")),
    "Llama-3 70B": ((8192, 28672, "gate, up"), (28672, 8192, "down"), (8192, 8192, "q, o")),
    "V4-Flash": ((4096, 1024, "wq_a"), (1024, 32768, "wq_b"), (4096, 512, "wkv"), (8192, 4096, "wo_b"),
                 (4096, 2048, "shared w1, w3"), (2048, 4096, "shared w2"), (1024, 8192, "indexer wq_b")),
    "V4-Pro": ((7168, 1536, "wq_a"), (1536, 65536, "wq_b"), (7168, 512, "wkv"), (16384, 7168, "wo_b"), (7168, 3072, "shared w1, w3"),
               (3072, 7168, "shared w2"), (1536, 8192, "indexer wq_b")),
}

# Experts, d, i, experts of a token, tokens
MOE = {
    "flash": (256, 4096, 2048, 6, (1, 8, 64, 256, 1024, 4096)),
    "qwen3-coder-next": (512, 2048, 512, 10, (1, 16, 64, 1024)),
    "glm-4.7-flash": (64, 2048, 1536, 4, (1, 16, 64, 1024)),
}


def shapes_of_models(models=None):
    """{(K_in, N): "MODEL: name; .."} in the order above. models: only these; None: all"""
    unknown = set(models or ()) - set(MODELS)
    if unknown:
        raise SystemExit(f"no model {', '.join(sorted(unknown))}: one of {', '.join(MODELS)}")
    found = {}
    for model, shapes in MODELS.items():
        if models is None or model in models:
            for k_in, n, what in shapes:
                found.setdefault((k_in, n), []).append(f"{model}: {what}")
    return {shape: "; ".join(who) for shape, who in found.items()}
