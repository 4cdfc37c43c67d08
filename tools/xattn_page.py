#!/usr/bin/env python3
"""The measured tables of the page of XAttention in docs/kernels and its figures, from bench/results: gpu-h200/peer_xattn.json
(bench/peer_xattn.py) and xattn_recall.json (tools/measure_xattn_recall.py).

    tools/xattn_page.py            rewrites them
    tools/xattn_page.py --check    exit 1 when they are not up to date
"""

import importlib.util
import json
import pathlib
import sys
import tempfile

from generated import ROOT, between_marks, settle

FOLDER = "docs/kernels"
PAGE, FIGURES = f"{FOLDER}/xattention.md", f"{FOLDER}/figures"
# Reference times of the published Triton pipeline on an H100, from docs/spec/xattention.md 3.5 and 4.2 (ms).
UPSTREAM = {("all stages S 16", 32768, 0.26): "13.2", ("all stages S 16", 131072, 0.1): "75-125",
            ("all stages S 16", 131072, 0.25): "149-195", ("scores S 8", 131072): "31-54",
            ("scores S 16", 131072): "18-39", ("selection", 131072): "9-53"}


def load_svg():
    spec = importlib.util.spec_from_file_location("svg", ROOT / "python/dsv4_kernels/_svg.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tokens(n):
    return f"{n // 1024}K"


def ms(value):
    if value is None:
        return ""
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def attention_table(rows):
    lines = ["| tokens | density | ours | FlexAttention | cuDNN, dense | ours | FlexAttention | cuDNN, dense |",
             "|---|---|---|---|---|---|---|---|"]
    for r in rows:
        rates = [f"{r['tflop_per_s'][name]:.0f} TFLOP/s" if name in r["ms"] else "" for name in ("ours", "flex", "cudnn")]
        times = [ms(r["ms"].get(name)) for name in ("ours", "flex", "cudnn")]
        lines.append(f"| {tokens(r['tokens'])} | {r['density']:.3f} | {' | '.join(times + rates)} |")
    return lines


def stage_table(rows):
    lines = ["| stage | tokens | ours | published Triton code, H100 |", "|---|---|---|---|"]
    for r in rows:
        reference = UPSTREAM.get((r["what"], r["tokens"]), "")
        rate = f", {r['tflop_per_s']['ours']:.0f} TFLOP/s" if "tflop_per_s" in r else ""
        lines.append(f"| {r['what']} | {tokens(r['tokens'])} | {ms(r['ms']['ours'])}{rate} | "
                     f"{reference + ' ms' if reference else ''} |")
    return lines


def pipeline_table(rows):
    lines = ["| tokens | density | ours, all stages | cuDNN, dense | ratio | published Triton pipeline, H100 |",
             "|---|---|---|---|---|---|"]
    for r in sorted(rows, key=lambda r: (r["tokens"], r["density"])):
        reference = UPSTREAM.get((r["what"], r["tokens"], round(r["density"], 2)), "")
        lines.append(f"| {tokens(r['tokens'])} | {r['density']:.3f} | {ms(r['ms']['ours'])} | {ms(r['ms']['cudnn'])} | "
                     f"{r['ms']['cudnn'] / r['ms']['ours']:.2f} | {reference + ' ms' if reference else ''} |")
    return lines


def measured(report):
    of = lambda start: [r for r in report["results"] if r["what"].startswith(start)]
    return "\n".join([
        f"{report['device']}, {report['heads']} query and {report['kv_heads']} key heads of {report['head_dim']}, "
        f"{report['dtype']}, causal, torch {report['torch']}, cuDNN {report['cudnn']} (`bench/peer_xattn.py`, one run):", "",
        "Attention over lists:", "", *attention_table(of("attention")), "",
        "Stages before it:", "", *stage_table(of("scores") + of("selection")), "",
        "All stages in one call:", "", *pipeline_table(of("all stages"))])


def recall_table(report):
    densities = [0.1, 0.2, 0.4]
    at = [report["densities"].index(d) for d in densities]
    lines = [f"Recall of attention mass at densities of {', '.join(map(str, densities))} ({report['tokens']} tokens):", "",
             f"| structure | {' | '.join(next(iter(report['recall'].values())))} |",
             f"|---|{'---|' * len(next(iter(report['recall'].values())))}"]
    for name, methods in report["recall"].items():
        cells = [" / ".join(f"{recall[i]:.2f}" for i in at) for recall in methods.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "Agreement of masks (blocks in both / blocks in either, density .2) of FP8 operands with those of f32:", "",
              f"| | {' | '.join(report['fp8_agreement'])} |", f"|---|{'---|' * len(report['fp8_agreement'])}"]
    for stride in ("8", "16"):
        cells = [f"{of[stride]:.3f}" for of in report["fp8_agreement"].values()]
        lines.append(f"| S {stride} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"![{name}](figures/xattn_recall_{name}.svg)" for name in report["recall"])])


def figures(report):
    plot = load_svg().line_plot
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, methods in report["recall"].items():
            path = pathlib.Path(folder) / f"xattn_recall_{name}.svg"
            plot(path, f"Recall by density: {name}", "density", "recall",
                 {method: list(zip(report["densities"], recall)) for method, recall in methods.items()})
            found[f"{FIGURES}/{path.name}"] = path.read_text()
    return found


def main():
    results = ROOT / "bench/results"
    peer = json.loads((results / "gpu-h200/peer_xattn.json").read_text())
    recall = json.loads((results / "xattn_recall.json").read_text())
    page = between_marks(PAGE, "measured", measured(peer))
    block = f"<!-- recall -->\n{recall_table(recall)}\n<!-- /recall -->"
    start, end = page.index("<!-- recall -->"), page.index("<!-- /recall -->") + len("<!-- /recall -->")
    wanted = {PAGE: page[:start] + block + page[end:], **figures(recall)}
    sys.exit(settle(wanted, "tools/xattn_page.py"))


if __name__ == "__main__":
    main()
