"""The tables of docs/decode-step.md: the minimum bytes that a decode step of V4-Flash reads, and where its time goes.

The minimum bytes come from the shapes of the checkpoint (docs/spec/dsv4.md 1.2, 10.2), the times from bench/results.
performance.py calls block().
"""

from common import percent, row, table

LAYERS, WINDOW, TOPK = 43, 128, 512
EXPERTS, CHOSEN = 256, 6
ROW, KEY = 584, 68  # bytes of a packed cache entry and of an indexer key
FP8, BF16, F32 = 1 + 1 / 128**2, 2, 4  # bytes per weight, scales included
K3 = 3.25 / 8
# Read-only bandwidth, bytes per second (docs/spec/attention-kernels.md 1.7, docs/spec/lowbit.md 9b).
READ_RATE = {"NVIDIA H200": 4.45e12, "NVIDIA H100 80GB HBM3": 3.0e12}

# (name, shape, layer kinds, bytes per weight, weights, op and shape of the benchmark)
SWA, HCA, CSA = "SWA", "HCA", "CSA"
KINDS = {SWA: 2, HCA: 20, CSA: 21}
ALL = (SWA, HCA, CSA)
WEIGHTS = (
    ("wq_a", "1024 x 4096", ALL, FP8, 1024 * 4096, None),
    ("wkv", "512 x 4096", ALL, FP8, 512 * 4096, None),
    ("wq_b", "32768 x 1024", ALL, FP8, 32768 * 1024, ("linear", "fp8_block q8/t:1/n:32768/k:1024")),
    ("wo_a", "8 x (1024 x 4096)", ALL, FP8, 8192 * 4096, None),
    ("wo_b", "4096 x 8192", ALL, FP8, 4096 * 8192, ("linear", "fp8_block q8/t:1/n:4096/k:8192")),
    ("compressor wkv + wgate", "2 x (1024 x 4096)", (CSA,), BF16, 2 * 1024 * 4096, None),
    ("compressor wkv + wgate", "2 x (512 x 4096)", (HCA,), BF16, 2 * 512 * 4096, None),
    ("indexer wq_b", "8192 x 1024", (CSA,), FP8, 8192 * 1024, None),
    ("indexer compressor", "2 x (256 x 4096)", (CSA,), BF16, 2 * 256 * 4096, None),
    ("indexer weights_proj", "64 x 4096", (CSA,), BF16, 64 * 4096, None),
    ("mHC fn, both sub-layers", "2 x (24 x 16384)", ALL, F32, 2 * 24 * 16384, None),
    ("router gate", "256 x 4096", ALL, BF16, 256 * 4096, None),
    ("shared expert w1, w3, w2", "3 x (2048 x 4096)", ALL, FP8, 3 * 2048 * 4096, None),
)
EXPERT = 3 * 2048 * 4096
HC_HEAD = 4 * 16384 * F32  # what joins the streams before the head
HEAD = ("head, once a step", "129280 x 4096", ALL, BF16, 129280 * 4096, ("linear", "bf16/t:1/n:129280/k:4096"))


def distinct(tokens):
    """Experts that a step reads in one layer when routing is uniform."""
    return EXPERTS * (1 - (1 - CHOSEN / EXPERTS) ** tokens)


def layer_bytes(kind, tokens, context):
    """Bytes that one layer has to read: weights once, cache entries once per token."""
    weights = sum(size * count for _, _, kinds, size, count, _ in WEIGHTS if kind in kinds)
    entries = {SWA: 0, HCA: context // 128, CSA: min(context // 4, TOPK)}[kind]
    keys = context // 4 if kind == CSA and context // 4 > TOPK else 0
    return weights + distinct(tokens) * EXPERT * K3 + tokens * ((WINDOW + entries) * ROW + keys * KEY)


def step_bytes(tokens, context):
    return sum(count * layer_bytes(kind, tokens, context) for kind, count in KINDS.items()) + HEAD[3] * HEAD[4] + HC_HEAD


def floor_rows(rate, context=4096):
    for tokens in (1, 8, 32, 64):
        layers = [layer_bytes(kind, tokens, context) / rate * 1e6 for kind in ALL]
        step = step_bytes(tokens, context) / rate * 1e3
        yield row(tokens, f"{distinct(tokens):.1f}", *(f"{us:.1f} us" for us in layers), f"{step:.2f} ms", f"{1000 * tokens / step:.0f}")


def measured_row(result, rate):
    floor = step_bytes(result["batch"], result["context"]) / rate * 1e3
    return row(result["batch"], f"{result['ms_per_step']:.2f} ms", f"{result['tokens_per_second']:.0f}", percent(floor / result["ms_per_step"]))


def overhead_us(result):
    """Cost of the events around a launch: the sum of the launches exceeds the captured step by this much per launch."""
    launches = sum(kernel["launches"] for kernel in result["kernels"])
    return (sum(kernel["us"] for kernel in result["kernels"]) - 1000 * result["ms_per_step"]) / launches


def kernel_rows(result):
    cost = overhead_us(result)
    kernels = sorted(((k["kernel"], k["launches"], k["us"] - cost * k["launches"]) for k in result["kernels"]), key=lambda k: -k[2])
    for name, launches, us in kernels:
        yield row(name, launches, f"{launches / LAYERS:.1f}", f"{us / launches:.1f} us", f"{us / 1000:.2f} ms",
                  percent(us / (1000 * result["ms_per_step"])))


def weight_table(rate, ops):
    """Every weight of a layer with its floor, and the op alone where its benchmark has this shape."""
    fastest = {}
    for r in sorted((r for r in ops["results"] if "us" in r) if ops else (), key=lambda r: -r["us"]):
        fastest[r["op"], r["shape"]] = r["us"]
    experts = (f"routed experts, {CHOSEN} of {EXPERTS}", f"{CHOSEN} x 3 x (2048 x 4096)", ALL, K3, CHOSEN * EXPERT, ("experts", "k3-e4m3-image/t:1"))
    formats = {FP8: "FP8", BF16: "BF16", F32: "F32", K3: "K=3"}
    rows = []
    for name, size, kinds, width, count, benchmark in (*WEIGHTS, experts, HEAD):
        us, floor = fastest.get(benchmark), width * count / rate * 1e6
        alone = "" if not ops else " | |" if us is None else f" {us:.1f} us | {percent(floor / us)} |"
        rows.append(row(name, "all" if kinds == ALL else ", ".join(kinds), size, formats[width], f"{width * count / 1e6:.2f}",
                        f"{floor:.2f} us") + alone)
    what = ", and the fastest implementation of the op alone (`dsv4_bench_cuda`) where the benchmark has its shape" if ops else ""
    return [f"What a layer reads at batch 1{what}:", "",
            *table("weight | layers | shape | format | MB | floor" + (" | alone | share" if ops else ""), *rows)]


def section(gpu):
    decode = gpu["decode_flash"]
    rate, first = READ_RATE[decode["device"]], decode["results"][0]
    same_context = {r["batch"]: r for r in decode["results"] if r["context"] == first["context"]}.values()
    launches = sum(kernel["launches"] for kernel in first["kernels"])
    return [f"### {decode['device']}", "",
            f"Floors at a read rate of {rate / 1e12:.2f} TB/s and a context of 4K; uniform routing, experts K=3, the rest FP8. Distinct: experts "
            "read in a layer.", "",
            *table("tokens a step | distinct | SWA layer | HCA layer | CSA layer | step | tokens/s", *floor_rows(rate)), "",
            "Measured by `dsv4 bench decode --ops`:", "",
            *table("batch | step | tokens/s | share of the floor", *(measured_row(r, rate) for r in same_context)), "",
            f"Kernels of one step at batch {first['batch']}, {launches} launches. Times are those of events around each launch, less "
            f"{overhead_us(first):.2f} us a launch, so that they add up to the captured step of {first['ms_per_step']:.2f} ms.", "",
            *table("kernel | launches | a layer | each | step | share", *kernel_rows(first)), "",
            *weight_table(rate, gpu.get("ops")), ""]


def block(gpus):
    """The sections of the GPUs that ran all layers."""
    return "\n".join(line for gpu in gpus if gpu.get("decode_flash", {}).get("layers") == LAYERS for line in section(gpu)).rstrip("\n")
