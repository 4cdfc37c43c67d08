"""Humming's dense product of bf16 activations and integer weights of 2 to 5 bits with a scale per 128 columns, as a peer of
bench/peer_kbit.py --humming. How its wheels are installed is in peer_humming.py; here, too, HUMMING_CACHE_DIR keeps what
NVRTC compiled, and the first run of a shape takes seconds for each number of rows.
"""

import copy
import importlib.metadata
import json

BITS_OF_SCALE = 16 / 128
TOLERANCE = 2.0**-6  # of the largest magnitude: bf16 operands and store


def version():
    import humming.layer  # noqa: F401, ImportError where it is missing
    return f"humming-kernels {importlib.metadata.version('humming-kernels')}"


def _layer(torch, k, k_in, n):
    """A layer of random weights and their values [n, k_in]."""
    from humming.layer import HummingLayer
    from humming.schema import HummingWeightSchema
    layer = HummingLayer(shape_n=n, shape_k=k_in, weight_config={"dtype": f"int{k}", "group_size": 128},
                         input_config={"dtype": "bfloat16"}, num_experts=None, torch_dtype=torch.bfloat16).cuda()
    dense = torch.randn(n, k_in, dtype=torch.bfloat16, device="cuda") * 0.02
    packed = HummingWeightSchema.quant_tensor(dense, layer.weight_schema, torch.bfloat16)
    values = layer.weight_schema.dequant_tensors(packed).float()
    layer.load_from_tensors(packed)
    layer.transform()
    return layer, values


def calls(torch, k, k_in, n, rows, rotate):
    """(m, calls that take weights in turn) for each m of rows. rotate: bytes that the weights have together, at least."""
    from humming.kernel.humming import HummingKernel
    from humming.tune import get_heuristics_config
    layer, values = _layer(torch, k, k_in, n)
    count = min(64, max(2, int(rotate // (n * k_in * (k + BITS_OF_SCALE) / 8)) + 1))
    layers = [layer] + [copy.deepcopy(layer) for _ in range(count - 1)]
    configs = {m: get_heuristics_config(layer.humming_config, shape_m=m, gemm_type="dense") for m in rows}
    HummingKernel.prepare_kernels(layer.humming_config.to_str(), json.dumps({"gemm_type": "dense"}),
                                  [(0, 1 << 30, config) for config in configs.values()])
    for m, config in configs.items():
        x, out = torch.randn(m, k_in, dtype=torch.bfloat16, device="cuda"), torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
        tuning = json.dumps(config)
        layer(x, outputs=out, input_scale=None, tuning_config=tuning)
        want = x[:64].float() @ values.T
        error = float((out[:64].float() - want).abs().max() / want.abs().max())
        if not error <= TOLERANCE:
            raise ValueError(f"wrong with {m} rows: error {error}")
        yield m, [lambda one=one: one(x, outputs=out, input_scale=None, tuning_config=tuning) for one in layers]
