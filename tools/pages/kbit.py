"""The table of docs/kernels/kbit.md beside cuBLAS, from bench/results/gpu-h200/peer_kbit.json (bench/peer_kbit.py)."""

from common import RESULTS, read, row, table, with_blocks

PAGE = "docs/kernels/kbit.md"


def wanted():
    report = read(RESULTS / "gpu-h200/peer_kbit.json")
    cases = {(r["m"], r["k"]): r for r in report["rows"] if r["dtype"] == "bfloat16" and (r["k_in"], r["n"]) == (8192, 8192)}
    bits = sorted({k for _, k in cases})
    lines = []
    for m in sorted({m for m, _ in cases}):
        best = [min((us, name) for name, us in cases[m, k]["us"].items() if name != "chosen") for k in bits]
        lines.append(row(m, f"{cases[m, bits[0]]['cublas_us']:.1f}", *(f"{us:.1f} `{name}`" for us, name in best)))
    text = [f"{report['device']}, 8192 x 8192, bf16 activations, us, weights from memory; the fastest of the implementations, which is not always the "
            "one that is chosen (`bench/peer_kbit.py --quick`):", "",
            *table(f"rows | cuBLAS bf16 | {' | '.join(f'K = {k}' for k in bits)}", *lines)]
    return {PAGE: with_blocks(PAGE, peer="\n".join(text))}
