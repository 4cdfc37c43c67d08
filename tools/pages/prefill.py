"""The tables of docs/prefill.md: what a chunk of a prompt takes by kernel, beside its floor, from bench/results.

Floors are bytes at the copy bandwidth, or operations at the rate that the card sustains, of V4-Flash's shapes
(docs/spec/dsv4.md 1.2) with experts of K = 3.
"""

from common import RESULTS, percent, read, row, table, thousands, with_blocks

PAGE = "docs/prefill.md"
LAYERS, CSA = 43, 21
WIDTH, STREAMS, HEADS, HEAD, INNER, CHOSEN, EXPERTS = 4096, 4, 64, 512, 2048, 6, 256
SUSTAINED = {"bf16": 800e12, "fp8": 1284e12}  # operations per second: cuBLAS and cuBLASLt on an H200 at 700 W
PARTS = (
    ("routed experts, products", ("experts_products",)),
    ("routed experts, lists and rows of x", ("experts_count", "experts_place", "experts_rows")),
    ("experts, sum over a token's experts", ("experts_combine",)),
    ("FP8 products", ("linear_cublaslt_fp8", "widen_scales")),
    ("bf16 products, wo_a dequantized", ("linear_cublaslt", "dequantize")),
    ("sparse attention, its queries finished", ("sparse_mla fp8", "finish_heads")),
    ("hyper-connections and norm before a block", ("hc_boundary post_mix", "hc_boundary finish_many", "hc_mix", "hc_finish", "hc_post")),
    ("index scores and selection", ("index_scores", "top_k")),
    ("index queries", ("hadamard", "fake_quant")),
    ("Q8 of activations, SwiGLU of the shared expert", ("quantize_q8", "experts_swiglu_q8")),
)


def floor_ms(name, tokens, copy):
    """Milliseconds of all layers that a part has to take at least, or None where nothing simple bounds it."""
    pairs = tokens * CHOSEN
    if name.startswith("routed experts, products"):
        return LAYERS * pairs * 6 * WIDTH * INNER / SUSTAINED["bf16"] * 1e3
    if name.startswith("FP8 products"):
        weights = 1024 * WIDTH + 512 * WIDTH + HEADS * HEAD * 1024 + WIDTH * 8192 + 3 * INNER * WIDTH
        return (LAYERS * weights + CSA * 8192 * 1024) * 2 * tokens / SUSTAINED["fp8"] * 1e3
    if name.startswith("hyper-connections"):  # streams in and out, y in, x out
        return LAYERS * 2 * tokens * WIDTH * 2 * (2 * STREAMS + 2) / copy * 1e3
    if name.startswith("experts, sum"):  # rows of the routed and the shared expert in f32 and bf16
        return LAYERS * tokens * WIDTH * (2 * CHOSEN + 4 + 2 + 4 + 4) / copy * 1e3
    return None


def phase_rows(result, copy):
    us = {kernel["kernel"]: kernel["us"] for kernel in result["kernels"]}
    launches = {kernel["kernel"]: kernel["launches"] for kernel in result["kernels"]}
    total = sum(us.values())
    parts = [(name, sum(us.pop(k, 0) for k in kernels), sum(launches.get(k, 0) for k in kernels)) for name, kernels in PARTS]
    parts.append(("others", sum(us.values()), sum(launches[k] for k in us)))
    for name, time, count in parts:
        floor = floor_ms(name, result["chunk"], copy)
        yield row(name, count, f"{time / 1e3:.1f} ms", percent(time / total), "" if floor is None else f"{floor:.1f} ms")
    yield row("**sum**", sum(launches.values()), f"{total / 1e3:.1f} ms", "", "")


def wanted():
    report, large, fp4 = (read(RESULTS / f"gpu-h200/prefill_{name}.json") for name in ("flash", "8192", "mxfp4"))
    first = report["results"][0]
    speeds = [(r, "") for r in report["results"] + large["results"]]
    speeds += [(r, f", {fp4['layers']} layers of {fp4['experts']}") for r in fp4["results"]]
    text = [f"{report['device']}, synthetic V4-Flash, experts {report['experts']}, {report['layers']} layers, official numerics "
            "(`dsv4 bench prefill --ops`):", "",
            *table("prompt | chunk | tokens/s | share of the bf16 peak", *(
                row(thousands(r["tokens"]) + what, thousands(r["chunk"]), f"{r['tokens_per_second']:.0f}", percent(r["share_of_matrix_roof"]))
                for r, what in speeds)), "",
            f"The first chunk of {thousands(first['chunk'])} tokens. *Floor*: bytes at {report['copy_bytes_per_s'] / 1e12:.2f} TB/s, or "
            "operations at 800 TFLOP/s in f16 and bf16 and 1,284 in FP8, which is what cuBLAS sustains.", "",
            *table("part of a layer | launches | time | share | floor", *phase_rows(first, report["copy_bytes_per_s"]))]
    return {PAGE: with_blocks(PAGE, prefill="\n".join(text))}
