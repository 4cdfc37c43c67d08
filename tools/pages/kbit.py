"""The tables of docs/kernels/kbit.md: beside cuBLAS and of whole mixtures of experts, from bench/results/gpu-h200/peer_kbit.json
and peer_kbit_moe.json (bench/peer_kbit.py), and of cuda_kbit and sm90_kbit_wide, from linear_kbit*.json (dsv4_bench_cuda).
kbit_table.py makes the page of all shapes and the picture."""

import re

import kbit_table
from common import RESULTS, read, row, table, with_blocks

PAGE = "docs/kernels/kbit.md"
SHAPE = re.compile(r"kbit(\d| peer) bf16/t:(\d+)/n:(\d+)/k:(\d+)$")
MOST_ROWS = 32  # for which cuda_kbit is chosen where sm90_kbit_wide is not


def by_case(report):
    """Microseconds by rows, n and k, and by K; of cuBLAS by " peer"."""
    us = {}
    for result in report["results"]:
        if "us" in result:
            k, *case = SHAPE.match(result["shape"]).groups()
            us.setdefault(tuple(int(number) for number in case), {})[k] = result["us"]
    return us


def beside_cublas():
    report = read(RESULTS / "gpu-h200/peer_kbit.json")
    cases = {(r["m"], r["k"]): r for r in kbit_table.rows_of(report)
             if r["dtype"] == "bfloat16" and (r["k_in"], r["n"]) == (8192, 8192)}
    bits = sorted({k for _, k in cases})
    lines = []
    for m in sorted({m for m, _ in cases}):
        best = [min((us, name) for name, us in cases[m, k]["us"].items() if name != "chosen") for k in bits]
        lines.append(row(m, f"{cases[m, bits[0]]['cublas_us']:.1f}", *(f"{us:.1f} `{name}`" for us, name in best)))
    return [f"{report['device']}, 8192 x 8192, bf16 activations, us, weights from memory; the fastest of the implementations, which is not always the "
            "one that is chosen (`bench/peer_kbit.py --quick`):", "",
            *table(f"rows | cuBLAS bf16 | {' | '.join(f'K = {k}' for k in bits)}", *lines)]


def streams():
    report = read(RESULTS / "gpu-h200/linear_kbit.json")
    us = by_case(report)
    bits = sorted(next(iter(us.values())))
    lines = [row(t, f"{n} x {k_in}", *(f"{us[t, n, k_in][k]:.1f}" for k in bits))
             for t, n, k_in in sorted(us, key=lambda case: (case[0], -case[1] * case[2])) if t in (1, 8, 16, MOST_ROWS)]
    return [f"{report['device']}, us with weights from memory (`dsv4_bench_cuda --filter '{report['filter']}'`):", "",
            *table(f"rows | weight | {' | '.join(f'K = {k}' for k in bits)}", *lines)]


def wide():
    report = read(RESULTS / "gpu-h200/linear_kbit_wide.json")
    us, peer = by_case(report), by_case(read(RESULTS / "gpu-h200/linear_kbit_peer.json"))
    bits = sorted(next(iter(us.values())))
    lines = [row(t, f"{n} x {k_in}", f"{peer[t, n, k_in][' peer']:.1f}", *(f"{us[t, n, k_in][k]:.1f}" for k in bits))
             for n, k_in, t in sorted(((n, k_in, t) for t, n, k_in in us), key=lambda case: (-case[0] * case[1], case[0], case[2]))]
    return [f"{report['device']}, us with weights from memory (`dsv4_bench_cuda --filter '{report['filter']}'`; cuBLAS in bf16, in the same run: `'linear/kbit peer "
            "bf16/.*cublaslt$'`):", "", *table(f"rows | weight | cuBLAS | {' | '.join(f'K = {k}' for k in bits)}", *lines)]


MODELS = {"flash": "V4-Flash: 6 of 256, 4096 x 2048", "qwen3-coder-next": "Qwen3-Coder-Next: 10 of 512, 2048 x 512",
          "glm-4.7-flash": "GLM-4.7-Flash: 4 of 64, 2048 x 1536"}


def moe():
    report = read(RESULTS / "gpu-h200/peer_kbit_moe.json")
    rows = kbit_table.rows_of(report)
    names = [name for name in ("cuda_kbit", "cuda", "chosen", "image") if any(name in r["us"] for r in rows)]
    heads = {"chosen": "chosen", "cuda_kbit": "`cuda_kbit`", "cuda": "`cuda` (f32)", "image": "with images"}
    lines, last = [], None
    for r in rows:
        times = [f"{r['us'][name]:,.0f}" if name in r["us"] else "" for name in names]
        lines.append(row(MODELS[r["model"]] if r["model"] != last else "", r["t"], *times, f"{r['floor_us']:.0f}"))
        last = r["model"]
    return [f"{report['device']}, K = 3, bf16, us of a whole `kbit_moe` (`bench/peer_kbit.py --moe`):", "",
            *table(f"experts | tokens | {' | '.join(heads[name] for name in names)} | floor", *lines)]


def wanted():
    blocks = {"peer": beside_cublas(), "streams": streams(), "wide": wide(), "moe": moe()}
    return {PAGE: with_blocks(PAGE, **{mark: "\n".join(lines) for mark, lines in blocks.items()}), **kbit_table.wanted()}
