#!/usr/bin/env python3
"""Humming's grouped products of V4-Flash's experts, as a peer of the routed experts.

    python3 -m pip install --no-index --no-deps --target DIR humming_kernels-0.1.19-*.whl apache_tvm_ffi-0.1.15.post2-*.whl
    PYTHONPATH=DIR python3 bench/peer_humming.py --compile && PYTHONPATH=DIR python3 bench/peer_humming.py --out FILE
    python3 bench/peer_humming.py --from-lines LINES --out FILE

Needs torch and a GPU; exit status 77 where they or Humming are missing. The wheels come from PyPI. Humming compiles with
NVRTC: --compile fills HUMMING_CACHE_DIR, so that the timed run holds the card for less long.

256 experts, 6 a token, uniform random routing. gate_up is [4096 x 4096] an expert and down [4096 x 2048] (output x
input). Activations are e4m3 with one scale per 128 columns, which is the model's own rounding, or with one scale a token,
which is not. Weights are MXFP4 or 3-bit integers. A case is a CUDA graph of several calls, each with another routing,
and its time is the median of 21 replays. Only the product counts: sorting of rows, quantization, SwiGLU and the combine
are outside. At T = 8 a case is also compared with a float32 reference of the weights it decodes; the activations'
rounding to e4m3 makes most of that error.
--from-lines turns the lines of an older run (one JSON object a case) into the same file, without a GPU.
"""

import argparse
import json
import statistics
import sys

EXPERTS, TOP_K, HIDDEN, INNER = 256, 6, 4096, 2048
SHAPES = {"gate_up": (2 * INNER, HIDDEN), "down": (HIDDEN, INNER)}  # rows, columns of an expert
TOKENS = {1: 40, 8: 16, 32: 8, 64: 8, 256: 4, 1024: 4, 4096: 2}     # tokens: calls in a graph
WEIGHTS = {"mxfp4": {"dtype": "float4e2m1", "group_size": 32, "scale_dtype": "float8e8m0"},
           "w3": {"dtype": "int3", "group_size": 128}}
BITS = {"mxfp4": 4.25, "w3": 3.125}
SCALES = {"fp8g": "128 columns", "fp8": "token"}
FIELDS = ("us", "us_min", "us_max", "reps", "calls", "tflops", "gbs")


def sorted_pairs(torch, experts_of, block):
    """Indices of pairs by expert, each expert padded to whole blocks; expert of a block; their count."""
    flat = experts_of.reshape(-1)
    counts = torch.bincount(flat, minlength=EXPERTS)
    blocks = (counts + block - 1) // block
    total = int(blocks.sum()) * block
    order = flat.argsort(stable=True)
    starts, firsts = (blocks.cumsum(0) - blocks) * block, counts.cumsum(0) - counts
    of_sorted = flat[order]
    rank = torch.arange(flat.numel(), device="cuda") - firsts[of_sorted]
    pairs = torch.full((total,), flat.numel(), dtype=torch.int32, device="cuda")
    pairs[starts[of_sorted] + rank] = order.int()
    expert_of_block = torch.repeat_interleave(torch.arange(EXPERTS, device="cuda"), blocks).int()
    return pairs, expert_of_block, torch.tensor([total], dtype=torch.int32, device="cuda")


def routings(torch, tokens, count):
    """Experts [tokens, TOP_K] of each call; one token never meets an expert of the calls just before it."""
    if tokens > 1:
        return [torch.rand(tokens, EXPERTS, device="cuda").topk(TOP_K, 1).indices for _ in range(count)]
    groups = torch.randperm(EXPERTS, device="cuda")[:EXPERTS // TOP_K * TOP_K].view(-1, 1, TOP_K)
    return [groups[i % len(groups)] for i in range(count)]


def replay_times(torch, calls, replays=21):
    """us a call of each replay of a graph of all calls, sorted."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    for _ in range(3):
        graph.replay()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(replays)]
    for begin, end in events:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return sorted(begin.elapsed_time(end) * 1e3 / len(calls) for begin, end in events)


class Layer:
    """All experts of one shape in one format: eight random matrices, repeated."""
    DISTINCT = 8

    def __init__(self, torch, case, weights, scale):
        from humming.layer import HummingLayer
        from humming.schema import HummingWeightSchema
        self.torch, self.case, self.weights, self.scale = torch, case, weights, scale
        self.rows, self.columns = SHAPES[case]
        weight_config, input_config = dict(WEIGHTS[weights]), {"dtype": "float8e4m3"}
        if scale == "fp8g":
            input_config["group_size"] = 128
        elif weights != "mxfp4":
            weight_config["group_size"] = 0  # one scale a row
        self.layer = HummingLayer(shape_n=self.rows, shape_k=self.columns, weight_config=weight_config,
                                  input_config=input_config, num_experts=EXPERTS, torch_dtype=torch.bfloat16).cuda()
        dense = torch.randn(self.DISTINCT, self.rows, self.columns, device="cuda", dtype=torch.bfloat16) * 0.02
        packed = HummingWeightSchema.quant_tensor(dense, self.layer.weight_schema, torch.bfloat16)
        self.decoded = self.layer.weight_schema.dequant_tensors(packed).bfloat16()
        repeats = EXPERTS // self.DISTINCT
        self.layer.load_from_tensors({k: v.repeat(repeats, *[1] * (v.ndim - 1)) for k, v in packed.items()})
        self.layer.transform()

    def configs(self):
        from humming.tune import get_heuristics_config
        return {t: get_heuristics_config(self.layer.humming_config, shape_m=t * TOP_K, gemm_type="indexed")
                for t in TOKENS}

    def compile(self):
        from humming.kernel.humming import HummingKernel
        HummingKernel.prepare_kernels(self.layer.humming_config.to_str(), json.dumps({"gemm_type": "indexed"}),
                                      [(0, 1 << 30, config) for config in self.configs().values()])

    def call(self, tokens, experts_of, config):
        """One call as a function, its input and its output."""
        from humming.forward import may_quant_input
        torch, gate_up = self.torch, self.case == "gate_up"
        pairs, experts, total = sorted_pairs(torch, experts_of, config["block_shape"][0])
        x = torch.randn(tokens if gate_up else tokens * TOP_K, self.columns, device="cuda", dtype=torch.bfloat16)
        codes, scales = may_quant_input(self.layer.humming_config, x)
        out = torch.empty(tokens * TOP_K, self.rows, device="cuda", dtype=torch.bfloat16)
        options = {"outputs": out, "input_scale": scales, "compute_config": json.dumps({"gemm_type": "indexed"}),
                   "tuning_config": json.dumps(config), "sorted_ids": pairs, "expert_ids": experts,
                   "num_tokens_padded": total, "top_k": TOP_K if gate_up else 1}
        return lambda: self.layer(codes, **options), x, out

    def error(self, experts_of, x, out):
        rows = x.repeat_interleave(TOP_K, 0) if self.case == "gate_up" else x
        weights = self.decoded[experts_of.reshape(-1) % self.DISTINCT].float()
        expected = self.torch.einsum("mk,mnk->mn", rows.float(), weights)
        return float((out.float() - expected).norm() / expected.norm())

    def time(self, tokens, config):
        choices = routings(self.torch, tokens, TOKENS[tokens])
        made = [self.call(tokens, choice, config) for choice in choices]
        result = {"case": self.case, "weights": self.weights, "scale_of": SCALES[self.scale], "tokens": tokens}
        if tokens == 8:
            made[0][0]()
            result["relative_error"] = self.error(choices[0], *made[0][1:])
        times = replay_times(self.torch, [call for call, _, _ in made])
        us = statistics.median(times)
        touched = EXPERTS * (1 - (1 - TOP_K / EXPERTS) ** tokens)
        size = self.rows * self.columns
        moved = touched * size * BITS[self.weights] / 8 + tokens * TOP_K * (self.columns + 2 * self.rows)
        return result | {"us": us, "us_min": times[0], "us_max": times[-1], "reps": len(times), "calls": len(made),
                         "tflops": 2e-6 * tokens * TOP_K * size / us, "gbs": moved / us * 1e-3,
                         "tile": config["block_shape"]}


def measure(torch, only_compile):
    for case in SHAPES:
        for weights in WEIGHTS:
            for scale in SCALES:
                layer = Layer(torch, case, weights, scale)
                layer.compile()
                if not only_compile:
                    for tokens, config in layer.configs().items():
                        yield layer.time(tokens, config)
                del layer
                torch.cuda.empty_cache()


def from_lines(path):
    """Cases of an older run, with its names ("humming mxfp4 fp8g indexed")."""
    with open(path, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    errors = {(row["peer"], row["check"]): row["relerr"] for row in rows if "check" in row}
    for row in rows:
        if "us" not in row:
            continue
        _, weights, scale, _ = row["peer"].split()
        result = {"case": row["case"], "weights": weights, "scale_of": SCALES[scale], "tokens": row["T"]}
        if row["T"] == 8:
            result["relative_error"] = errors[row["peer"], row["case"]]
        yield result | {field: row[field] for field in FIELDS} | {"tile": row["cfg"]["block_shape"]}


def write(path, about, results):
    head = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in about.items())
    with open(path, "w", encoding="utf-8") if path else sys.stdout as out:
        out.write(f'{{{head}, "results": [\n' + ",\n".join(json.dumps(row) for row in results) + "\n]}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="file of the result; stdout if absent")
    parser.add_argument("--compile", action="store_true", help="only compile the kernels")
    parser.add_argument("--from-lines", metavar="FILE", help="convert the lines of an older run")
    parser.add_argument("--date", help="date of those lines")
    options = parser.parse_args()
    about = {"peer": "humming-kernels 0.1.19", "experts": EXPERTS, "top_k": TOP_K}
    if options.from_lines:
        about |= {"device": "NVIDIA H200", "date": options.date}
        write(options.out, about, list(from_lines(options.from_lines)))
        return 0
    try:
        import humming
        import torch
    except ImportError as error:
        print(f"skipped: {error}; see the head of this script for the wheels", file=sys.stderr)
        return 77
    del humming
    if not torch.cuda.is_available():
        print("skipped: no GPU", file=sys.stderr)
        return 77
    torch.manual_seed(0)
    results = list(measure(torch, options.compile))
    if not options.compile:
        about |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        write(options.out, about, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
