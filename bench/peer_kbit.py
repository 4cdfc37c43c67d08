#!/usr/bin/env python3
"""k-bit products of dsv4_kernels beside cuBLAS bf16 (torch) on a GPU, in one run.

    PYTHONPATH=build/python python3 bench/peer_kbit.py [--out FILE] [--quick | --all | --moe] [--humming]

Dense: a few shapes, K = 2 to 5, M = 1 to 4096, bf16 and f16. Every implementation of linear that takes a case is timed by
its name, `chosen` is the one that a call takes, and `cublas_us` is the same product of bf16 weights. --quick has one shape
and four M. --all has every shape of kbit_shapes.py in bf16 and times only what a call takes, of three kinds of weights: rows
with the codebook e4m3, rows with a generic codebook (nf, K = 3 and 4, M up to 64), and images (K = 2 to 4, M up to 8).

A case is a CUDA graph whose calls take weights in turn that exceed L2 together, so that they come from memory; its time is
the median of up to 21 replays over the number of calls. `floor_us` is the longer of reading the stored bytes at --bandwidth
and multiplying at 989 TFLOP/s. Before it is timed, each implementation is compared with a float32 product of the
dequantized weight (64 rows of it), and `error` is the largest difference over the largest magnitude.

--humming adds the k-bit product of Humming with integer weights (a scale per 128 columns) to the rows that it takes; its
wheels are installed as bench/peer_humming.py says. Without them the file says so.
--moe times kbit_moe on the experts of models in kbit_shapes.py instead, K = 3: everything from x to the weighted sum, by the
chosen implementation, by each of MOE_IMPLEMENTATIONS and with images, which are first compared with the f32 one (`error`,
as above). Needs torch, a GPU and the package; exit status 77 where they are missing.
"""

import argparse
import json
import statistics
import sys
import time

from kbit_shapes import MOE, SHAPES, shapes_of_models

ROWS = (1, 2, 4, 8, 16, 32, 64, 256, 4096)
IMPLEMENTATIONS = ("cuda_kbit", "sm90_kbit_wide", "sm90_few_kbit", "cuda_mma", "cuda", "cublaslt_any")
MOE_IMPLEMENTATIONS = ("cuda", "cuda_kbit")
BITS = (2, 3, 4, 5)
DEVICE = "cuda"
ROTATE = 96 << 20     # bytes of weights in a graph; an H200 has 50 MB of L2
MOE_TURNS = 8         # routings in a graph
SLOW_ROWS = 64        # the f32 implementation is not timed with more
PEAK = 989e12         # FLOP/s of bf16
REPLAYS, SECONDS = 21, 0.04  # of a case: no more of either, but three replays
TOLERANCE = {"bfloat16": 2.0**-6, "float16": 2.0**-9}  # of the largest magnitude: operands and the store


def replay_us(torch, calls):
    """Median us of one call in a graph of all. The replays are queued, so that the GPU does not wait for the host."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    for call in calls:
        call()
    graph.capture_end()

    def timed(replays):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
        marks[0].record()
        for mark in marks[1:]:
            graph.replay()
            mark.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) / 1e3 for a, b in zip(marks, marks[1:])]
    warm = timed(2)[1]
    times = timed(max(3, min(REPLAYS, int(SECONDS / warm))))
    return round(statistics.median(times) / len(calls) * 1e6, 3)


class Pool:
    """Random bytes that all weights are parts of. Scales are between 1/16 and 1/2."""

    def __init__(self, torch, kernels, mega=1 << 20):
        self.torch, self.kernels = torch, kernels
        self.words = torch.randint(-2**31, 2**31 - 1, (100 * mega,), dtype=torch.int32, device=DEVICE)
        self.scales = torch.randint(0x70, 0xa0, (48 * mega,), dtype=torch.uint8, device=DEVICE)
        self.floats = torch.randn(480 * mega, dtype=torch.bfloat16, device=DEVICE)
        self.workspace = torch.empty(2048 * mega, dtype=torch.uint8, device=DEVICE)

    @staticmethod
    def parts(memory, shape, count):
        size = 1
        for extent in shape:
            size *= extent
        step = -(-size // 256) * 256
        return [memory[i * step:i * step + size].view(shape) for i in range(count)]

    def kbit(self, k, k_in, n, book):
        count = max(2, int(ROTATE // (n * k_in * (k + 0.25) / 8)) + 1)
        data = self.parts(self.words, (n, k_in // 32 * k), count)
        scale = self.parts(self.scales, (n, k_in // 32), count)
        codebook = self.kernels.create_codebook(book, k, self.words)
        return [self.kernels.KbitWeight("kbit", n, k_in, d, s, codebook, k, e4m3=book == "e4m3") for d, s in zip(data, scale)]

    def bf16(self, k_in, n):
        return self.parts(self.floats, (n, k_in), max(2, int(ROTATE // (2 * n * k_in)) + 1))

    def x(self, m, k_in, dtype):
        return self.floats[-m * k_in:].view(m, k_in).to(dtype)

    def cublas_us(self, k_in, n, m):
        x, out = self.x(m, k_in, self.torch.bfloat16), self.torch.empty(m, n, dtype=self.torch.bfloat16, device=DEVICE)
        return replay_us(self.torch, [lambda w=w: self.torch.mm(x, w.t(), out=out) for w in self.bf16(k_in, n)])


def check(out, x, values, what):
    """The error of out = x values^T, values f32, in its first and last 32 rows."""
    rows = slice(None) if len(x) <= 64 else [*range(32), *range(len(x) - 32, len(x))]
    want = x[rows].float() @ values.T
    error = float((out[rows].float() - want).abs().max() / want.abs().max())
    if not error <= TOLERANCE[str(out.dtype).rpartition(".")[2]]:
        sys.exit(f"wrong: {what}: error {error}")
    return round(error, 6)


def dense_row(pool, weights, values, m, dtype, bandwidth, implementations, **more):
    """A row of the JSON. weights: of one shape, in turn; values: the first one, f32; implementations: names, None: chosen."""
    torch, first = pool.torch, weights[0]
    k_in, n, k, out = first.k, first.n, first.bits, torch.empty(m, first.n, dtype=dtype, device=DEVICE)
    x, bytes = pool.x(m, first.k, dtype), first.n * first.k * (first.bits + 0.25) / 8

    def call_of(w, implementation):
        return lambda: pool.kernels.kbit_linear(x, w.data, w.scale, w.codebook, k, k_in, n, out, pool.workspace, e4m3=w.e4m3,
                                                implementation=implementation)
    row = {"op": "kbit_linear", "k": k, "k_in": k_in, "n": n, "m": m, "dtype": str(dtype).rpartition(".")[2], **more,
           "floor_us": round(max(bytes / bandwidth, 2 * m * n * k_in / PEAK) * 1e6, 3), "us": {}, "error": {}}
    for name in implementations:
        if name == "cuda" and m > SLOW_ROWS:
            continue
        try:
            call_of(first, name)()
        except ValueError:  # does not take the case
            if name is None:
                raise
            continue
        key = name or "chosen"
        row["error"][key] = check(out, x, values, f"{key}: {more} {k} bits [{n}, {k_in}] times {m} rows")
        row["us"][key] = replay_us(torch, [call_of(w, name) for w in weights])
    return row


def by_name(pool, shapes, rows, bandwidth):
    """Every implementation, in both dtypes."""
    for k_in, n in shapes:
        cublas = {m: pool.cublas_us(k_in, n, m) for m in rows}
        for k in BITS:
            weights = pool.kbit(k, k_in, n, "e4m3")
            values = weights[0].dequantize()
            for m in rows:
                for dtype in (pool.torch.bfloat16, pool.torch.float16):
                    yield dense_row(pool, weights, values, m, dtype, bandwidth, (None, *IMPLEMENTATIONS),
                                    codebook="e4m3", layout="rows", cublas_us=cublas[m])


def all_shapes(pool, shapes, bandwidth):
    """What a call takes, of rows, rows with a generic codebook, and images."""
    kinds = (("e4m3", "rows", BITS, ROWS[-1]), ("nf", "rows", (3, 4), 64), ("e4m3", "image", (2, 3, 4), 8))
    for k_in, n in shapes:
        begin, cublas = time.monotonic(), {m: pool.cublas_us(k_in, n, m) for m in ROWS}
        for book, layout, bits, most in kinds:
            for k in bits:
                weights = pool.kbit(k, k_in, n, book)
                values = weights[0].dequantize()
                if layout == "image":
                    weights = [w.repacked(layout) for w in weights]
                for m in (m for m in ROWS if m <= most):
                    yield dense_row(pool, weights, values, m, pool.torch.bfloat16, bandwidth, (None,), codebook=book,
                                    layout=layout, cublas_us=cublas[m])
        print(f"{k_in} -> {n}: {time.monotonic() - begin:.1f} s", flush=True)


def add_humming(torch, rows):
    """Adds "humming" to the us of bf16 rows with e4m3; returns what the file says about it."""
    try:
        import peer_humming_dense
        version = peer_humming_dense.version()
    except ImportError as missing:
        return f"not installed: {missing}"
    cases = {}
    for row in rows:
        if row["dtype"] == "bfloat16" and (row["codebook"], row["layout"]) == ("e4m3", "rows"):
            cases.setdefault((row["k"], row["k_in"], row["n"]), {})[row["m"]] = row
    for (k, k_in, n), by_m in cases.items():
        try:
            for m, calls in peer_humming_dense.calls(torch, k, k_in, n, by_m, ROTATE):
                by_m[m]["us"]["humming"] = replay_us(torch, calls)
        except Exception as refused:  # it compiles as it goes; a shape that it does not take is no reason to stop
            print(f"humming, {k} bits, {k_in} -> {n}: {refused}", flush=True)
    return version


def random_stack(torch, kernels, k, n, k_in, experts):
    data = torch.randint(-2**31, 2**31 - 1, (experts, n, k_in // 32 * k), dtype=torch.int32, device=DEVICE)
    scale = torch.randint(0x70, 0xa0, (experts, n, k_in // 32), dtype=torch.uint8, device=DEVICE)
    book = kernels.create_codebook("e4m3", k, data)
    return kernels.KbitWeight("kbit", n, k_in, data, scale, book, k, [1.0] * experts, e4m3=True)


def routings(torch, experts, top_k, t):
    """[t, top_k] of each call of a graph. A few tokens meet other experts in each call, as long as there are any."""
    if t * top_k * 2 > experts:
        return [torch.rand(t, experts, device=DEVICE).topk(top_k, 1).indices.int() for _ in range(MOE_TURNS)]
    order, turns = torch.randperm(experts, device=DEVICE).int(), min(MOE_TURNS, experts // (t * top_k))
    return list(order[:turns * t * top_k].view(turns, t, top_k))


def moe_row(torch, kernels, stacks, images, model, t, bandwidth):
    experts, d, inner, top_k = MOE[model][:4]
    ids = routings(torch, experts, top_k, t)
    x = torch.randn(t, d, dtype=torch.bfloat16, device=DEVICE)
    out, weights = torch.empty_like(x), torch.rand(t, top_k, device=DEVICE)
    touched = statistics.mean(len(i.unique()) for i in ids)
    seconds = max(touched * 3 * d * inner * 3.25 / 8 / bandwidth, 6 * t * top_k * d * inner / PEAK)
    row = {"op": "kbit_moe", "model": model, "k": 3, "t": t, "floor_us": round(seconds * 1e6, 3), "us": {}, "error": {}}
    want = kernels.kbit_moe(x, *stacks, ids[0], weights, numerics="exact").float()
    cases = [("chosen", stacks, None), *((name, stacks, name) for name in MOE_IMPLEMENTATIONS), ("image", images, None)]
    for key, these, name in cases:
        if key == "cuda" and t > SLOW_ROWS:
            continue

        def call(i, these=these, name=name):
            return kernels.kbit_moe(x, *these, i, weights, out=out, implementation=name)
        try:
            call(ids[0])
        except ValueError:
            if key == "chosen":
                raise
            continue
        error = float((out.float() - want).abs().max() / want.abs().max())
        if not error <= TOLERANCE["bfloat16"]:
            sys.exit(f"wrong: {key} {model} t={t}: error {error}")
        row["error"][key] = round(error, 6)
        row["us"][key] = replay_us(torch, [lambda i=i: call(i) for i in ids])
    return row


def moe_cases(torch, kernels, bandwidth):
    for model, (experts, d, inner, _, tokens) in MOE.items():
        stacks = [random_stack(torch, kernels, 3, *shape, experts) for shape in ((inner, d), (inner, d), (d, inner))]
        images = [stack.repacked("image") for stack in stacks]
        for t in tokens:
            yield moe_row(torch, kernels, stacks, images, model, t, bandwidth)
        del stacks, images
        torch.cuda.empty_cache()


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="JSON file; otherwise lines on stdout")
    parser.add_argument("--quick", action="store_true", help="8192 x 8192, M = 1, 16, 64 and 256")
    parser.add_argument("--all", action="store_true", help="the table of docs/kernels/kbit_table.md")
    parser.add_argument("--moe", action="store_true")
    parser.add_argument("--humming", action="store_true")
    parser.add_argument("--models", help="with --all: only these, separated by commas")
    parser.add_argument("--bandwidth", type=float, default=4.3e12, help="bytes/s of a copy (H100: 3.0e12)")
    return parser.parse_args()


def write(path, report, results):
    """A line for each row."""
    with open(path, "w") as file:
        lines = ",\n".join(json.dumps(row) for row in results)
        file.write(f"{json.dumps(report)[:-1]}, \"results\": [\n{lines}\n]}}\n")


def main():
    args = options()
    try:
        import dsv4_kernels as kernels
        import torch
        if not torch.cuda.is_available():
            raise ImportError("no GPU")
    except ImportError as missing:
        print(missing)
        return 77
    torch.cuda.set_stream(torch.cuda.Stream())  # the default one cannot be captured
    report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "bandwidth": args.bandwidth}
    begin = time.monotonic()
    names = shapes_of_models(args.models.split(",") if args.models else None)
    if args.moe:
        rows = moe_cases(torch, kernels, args.bandwidth)
    elif args.all:
        rows = all_shapes(Pool(torch, kernels), names, args.bandwidth)
        report["shapes"] = [[k_in, n, of] for (k_in, n), of in names.items()]
    else:
        shapes, m = (SHAPES[:1], (1, 16, 64, 256)) if args.quick else (SHAPES, ROWS)
        rows = by_name(Pool(torch, kernels), shapes, m, args.bandwidth)
    results = []
    try:
        for row in rows:
            results.append(row)
            if not (args.all and args.out):
                print(json.dumps(row), flush=True)
        if args.humming and not args.moe:
            report["humming"] = add_humming(torch, results)
    finally:  # what was measured before something was wrong
        report["seconds"] = round(time.monotonic() - begin, 1)
        if args.out:
            write(args.out, report, results)
    print(f"{len(results)} rows in {report['seconds']} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
