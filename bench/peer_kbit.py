#!/usr/bin/env python3
"""k-bit products of dsv4_kernels beside cuBLAS bf16 (torch) on a GPU, in one run.

    PYTHONPATH=build/python python3 bench/peer_kbit.py [--out FILE] [--quick] [--moe]

Dense: the shapes of Llama-3 8B and 70B and Qwen3-Coder-Next, K = 2 to 5, M = 1 to 4096. Every implementation of linear
that takes a case is timed by its name, `chosen` is the one that a call takes, and `cublas_us` is the same product of bf16
weights. A case is a CUDA graph with as many copies of the weight as exceed 256 MB, so that weights come from memory; its
time is the median of 21 replays over the number of calls. `floor_us` is the stored bytes over --bandwidth. Before it is
timed, each implementation is compared with a float32 product of the dequantized weight, and `error` is the largest
difference over the largest magnitude.
--moe times kbit_moe on the experts of V4-Flash and Qwen3-Coder-Next instead, K = 3: everything from x to the weighted
sum, by the chosen implementation and by each of MOE_IMPLEMENTATIONS, which are first compared with the f32 one (`error`,
as above). Needs torch, a GPU and the package; exit status 77 where they are missing.
"""

import argparse
import json
import statistics
import sys

SHAPES = ((8192, 8192), (4096, 14336), (2048, 5120))  # K_in, N
ROWS = (1, 2, 4, 8, 16, 32, 64, 256, 4096)
IMPLEMENTATIONS = ("cuda_kbit", "sm90_kbit_wide", "sm90_few_kbit", "cuda_mma", "cuda", "cublaslt_any")
MOE_IMPLEMENTATIONS = ("cuda", "cuda_kbit")
MOE = {"flash": (256, 4096, 2048, 6, (1, 8, 64)), "qwen3-coder-next": (512, 2048, 512, 10, (1, 16))}
ROTATE = 256 << 20  # bytes of weights in a graph
SLOW_ROWS = 64      # the f32 implementation is not timed with more
TOLERANCE = {"bfloat16": 2.0**-6, "float16": 2.0**-9}  # of the largest magnitude: operands and the store


def replay_us(torch, calls, replays=21):
    """Median us of one call in a graph of all."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        calls[0]()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for i in range(replays + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times[3:])


def random_kbit(torch, kernels, k, n, k_in, experts=None):
    """A KbitWeight of random codes; scales between 1/16 and 1/2."""
    stack = () if experts is None else (experts,)
    data = torch.randint(-2**31, 2**31 - 1, (*stack, n, k_in // 32 * k), dtype=torch.int32, device="cuda")
    scale = torch.randint(0x70, 0xa0, (*stack, n, k_in // 32), dtype=torch.uint8, device="cuda")
    book = kernels.create_codebook("e4m3", k, data)
    return kernels.KbitWeight("kbit", n, k_in, data, scale, book, k, 1.0 if experts is None else [1.0] * experts,
                              e4m3=True)


def check(torch, out, x, weight):
    want = x.float() @ weight.dequantize().T
    error = float((out.float() - want).abs().max() / want.abs().max())
    if not error <= TOLERANCE[str(out.dtype).rpartition(".")[2]]:
        sys.exit(f"wrong: {weight.bits} bits [{weight.n}, {weight.k}] times {list(x.shape)}: error {error}")
    return error


def dense_case(torch, kernels, k, k_in, n, m, dtype, bandwidth, cublas):
    bytes = n * k_in * (k + 0.25) / 8
    weights = [random_kbit(torch, kernels, k, n, k_in) for _ in range(max(2, int(ROTATE // bytes) + 1))]
    x = torch.randn(m, k_in, dtype=dtype, device="cuda")
    out = torch.empty(m, n, dtype=dtype, device="cuda")

    def call_of(w, implementation):
        return lambda: kernels.kbit_linear(x, w.data, w.scale, w.codebook, k, k_in, n, out, e4m3=True,
                                           implementation=implementation)
    row = {"op": "kbit_linear", "k": k, "k_in": k_in, "n": n, "m": m, "dtype": str(dtype).rpartition(".")[2],
           "floor_us": bytes / bandwidth * 1e6, "cublas_us": cublas, "us": {}, "error": {}}
    for name in (None, *IMPLEMENTATIONS):
        if name == "cuda" and m > SLOW_ROWS:
            continue
        try:
            call_of(weights[0], name)()
        except ValueError:  # does not take the case
            if name is None:
                raise
            continue
        key = name or "chosen"
        row["error"][key] = check(torch, out, x, weights[0])
        row["us"][key] = replay_us(torch, [call_of(w, name) for w in weights])
    return row


def cublas_us(torch, k_in, n, m):
    count = max(2, int(ROTATE // (2 * n * k_in)) + 1)
    weights = [torch.randn(n, k_in, dtype=torch.bfloat16, device="cuda") for _ in range(count)]
    x, out = torch.randn(m, k_in, dtype=torch.bfloat16, device="cuda"), None
    return replay_us(torch, [lambda w=w: torch.nn.functional.linear(x, w) for w in weights])


def moe_cases(torch, kernels, bandwidth):
    for model, (experts, d, inner, top_k, tokens) in MOE.items():
        stacks = [random_kbit(torch, kernels, 3, *shape, experts) for shape in ((inner, d), (inner, d), (d, inner))]
        for t in tokens:
            ids = [torch.rand(t, experts, device="cuda").topk(top_k, 1).indices.int() for _ in range(8)]
            x = torch.randn(t, d, dtype=torch.bfloat16, device="cuda")
            out, weights = torch.empty_like(x), torch.rand(t, top_k, device="cuda")
            touched = statistics.mean(len(i.unique()) for i in ids)
            row = {"op": "kbit_moe", "model": model, "k": 3, "t": t, "us": {}, "error": {},
                   "floor_us": touched * 3 * d * inner * 3.25 / 8 / bandwidth * 1e6}
            want = kernels.kbit_moe(x, *stacks, ids[0], weights, numerics="exact").float()
            for name in (None, *MOE_IMPLEMENTATIONS):
                def call(i, name=name):
                    return kernels.kbit_moe(x, *stacks, i, weights, out=out, implementation=name)
                error = float((call(ids[0]).float() - want).abs().max() / want.abs().max())
                if not error <= TOLERANCE["bfloat16"]:
                    sys.exit(f"wrong: {name} {model} t={t}: error {error}")
                row["error"][name or "chosen"] = error
                row["us"][name or "chosen"] = replay_us(torch, [lambda i=i: call(i) for i in ids])
            yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="JSON file; otherwise lines on stdout")
    parser.add_argument("--quick", action="store_true", help="8192 x 8192, M = 1, 16, 64 and 256")
    parser.add_argument("--moe", action="store_true")
    parser.add_argument("--bandwidth", type=float, default=4.3e12, help="bytes/s of a copy (H100: 3.0e12)")
    args = parser.parse_args()
    try:
        import dsv4_kernels as kernels
        import torch
        if not torch.cuda.is_available():
            raise ImportError("no GPU")
    except ImportError as missing:
        print(missing)
        return 77
    rows = []

    def add(row):
        rows.append(row)
        print(json.dumps(row), flush=True)
    if args.moe:
        for row in moe_cases(torch, kernels, args.bandwidth):
            add(row)
    for k_in, n in () if args.moe else SHAPES[:1] if args.quick else SHAPES:
        for m in (1, 16, 64, 256) if args.quick else ROWS:
            cublas = cublas_us(torch, k_in, n, m)
            for k in (2, 3, 4, 5):
                for dtype in (torch.bfloat16, torch.float16):
                    add(dense_case(torch, kernels, k, k_in, n, m, dtype, args.bandwidth, cublas))
    if args.out:
        device = torch.cuda.get_device_name()
        with open(args.out, "w") as file:
            json.dump({"device": device, "torch": torch.__version__, "bandwidth": args.bandwidth, "rows": rows}, file,
                      indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
