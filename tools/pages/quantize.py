"""The speeds on docs/quantize.md: of whole conversions, from bench/results/quantize_flash.json and gpu-h200/quantize_flash.json
(tools/measure_quantize.py), and of the kernels alone, from gpu-h200/ops_conversions.json (dsv4_bench_cuda). What is not there
is not in the table."""

from common import RESULTS, read, row, table, with_blocks

PAGE = "docs/quantize.md"
WEIGHTS = {"quantize_kbit": 2048 * 4096, "quantize_fp4": 2048 * 4096, "row_errors": 2048 * 4096, "repack_kbit": 2048 * 4096,
           "repack_image": 2048 * 4096, "dequantize": 4096 * 4096}  # of a case of the benchmarks
FLASH = 43 * 256 * 3 * 2048 * 4096  # weights of its routed experts


def conversions():
    lines = []
    for path in (RESULTS / "quantize_flash.json", RESULTS / "gpu-h200/quantize_flash.json"):
        if path.exists():
            r = read(path)
            flags = dict(zip(r["flags"][::2], r["flags"][1::2]))
            where = r.get("device", "cpu")
            where = f"{r['cpu']}, {r['threads']} threads" + ("" if where == "cpu" else f", {where}")
            rate = r["weights_per_s"]
            lines.append(row(where, f"`{flags['--experts']}`, {flags['--scales']}", r["layers"], f"{rate / 1e9:.2f}", f"{FLASH / rate / 60:.0f} min",
                             f"{r['peak_rss_bytes'] / 2**20:,.0f} MiB"))
    return table("host, GPU | experts, scales | layers | G weights/s | all 43 layers at this rate | peak memory", *lines)


def kernels():
    path = RESULTS / "gpu-h200/ops_conversions.json"
    if not path.exists():
        return []
    report = read(path)
    lines = [row(f"`{r['op']}`", r["shape"], f"{r['us']:.1f}", f"{WEIGHTS[r['op']] / r['us'] / 1e3:,.0f}", f"{r['percent_copy']:.0f} %")
             for r in report["results"] if r["op"] in WEIGHTS and r["impl"] == "cuda" and "us" in r]
    return ["", f"Kernels alone on an {report['device']} (`dsv4_bench_cuda --filter '{report['filter']}'`), a matrix of 2048 x 4096 (`dequantize`: "
            "4096 x 4096) from memory:", "", *table("op | case | us | G weights/s | of the bandwidth of a copy", *lines)]


def wanted():
    return {PAGE: with_blocks(PAGE, speed="\n".join([*conversions(), *kernels()]))}
