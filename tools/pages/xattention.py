"""The measured tables and figures of the page of XAttention in docs/kernels, from bench/results: gpu-h200/peer_xattn.json
(bench/peer_xattn.py) and xattn_recall.json (tools/measure_xattn_recall.py).
"""

from common import RESULTS, load_svg, read, row, table, thousands, with_blocks

FOLDER = "docs/kernels"
PAGE, FIGURES = f"{FOLDER}/xattention.md", f"{FOLDER}/figures"
# Reference times of the published Triton pipeline on an H100, from docs/spec/xattention.md 3.5 and 4.2 (ms).
UPSTREAM = {("all stages S 16", 32768, 0.26): "13.2", ("all stages S 16", 131072, 0.1): "75-125",
            ("all stages S 16", 131072, 0.25): "149-195", ("scores S 8", 131072): "31-54",
            ("scores S 16", 131072): "18-39", ("selection", 131072): "9-53"}


def ms(value):
    if value is None:
        return ""
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def upstream(*case):
    return f"{UPSTREAM[case]} ms" if case in UPSTREAM else ""


def attention_row(r):
    names = ("ours", "flex", "cudnn")
    rates = [f"{r['tflop_per_s'][name]:.0f} TFLOP/s" if name in r["ms"] else "" for name in names]
    return row(thousands(r["tokens"]), f"{r['density']:.3f}", *(ms(r["ms"].get(name)) for name in names), *rates)


def stage_row(r):
    rate = f", {r['tflop_per_s']['ours']:.0f} TFLOP/s" if "tflop_per_s" in r else ""
    return row(r["what"], thousands(r["tokens"]), ms(r["ms"]["ours"]) + rate, upstream(r["what"], r["tokens"]))


def pipeline_row(r):
    ours, cudnn = r["ms"]["ours"], r["ms"]["cudnn"]
    return row(thousands(r["tokens"]), f"{r['density']:.3f}", ms(ours), ms(cudnn), f"{cudnn / ours:.2f}",
               upstream(r["what"], r["tokens"], round(r["density"], 2)))


def measured(report):
    of = lambda start: [r for r in report["results"] if r["what"].startswith(start)]
    pipelines = sorted(of("all stages"), key=lambda r: (r["tokens"], r["density"]))
    return "\n".join([
        f"{report['device']}, {report['heads']} query and {report['kv_heads']} key heads of {report['head_dim']}, "
        f"{report['dtype']}, causal, torch {report['torch']}, cuDNN {report['cudnn']} (`bench/peer_xattn.py`, one run):", "",
        "Attention over lists:", "",
        *table("tokens | density | ours | FlexAttention | cuDNN, dense | ours | FlexAttention | cuDNN, dense",
               *map(attention_row, of("attention"))), "",
        "Stages before it:", "",
        *table("stage | tokens | ours | published Triton code, H100", *map(stage_row, of("scores") + of("selection"))), "",
        "All stages in one call:", "",
        *table("tokens | density | ours, all stages | cuDNN, dense | ratio | published Triton pipeline, H100",
               *map(pipeline_row, pipelines))])


def recall_tables(report):
    densities = [0.1, 0.2, 0.4]
    at = [report["densities"].index(d) for d in densities]
    recall, agreement = report["recall"], report["fp8_agreement"]
    lines = [f"Recall of attention mass at densities of {', '.join(map(str, densities))} ({report['tokens']} tokens):", "",
             *table(f"structure | {' | '.join(next(iter(recall.values())))}",
                    *(row(name, *(" / ".join(f"{values[i]:.2f}" for i in at) for values in methods.values()))
                      for name, methods in recall.items())), "",
             "Agreement of masks (blocks in both / blocks in either, density .2) of FP8 operands with those of f32:", "",
             *table(f"| {' | '.join(agreement)}",
                    *(row(f"S {stride}", *(f"{values[stride]:.3f}" for values in agreement.values())) for stride in ("8", "16"))), "",
             *(f"![{name}](figures/xattn_recall_{name}.svg)" for name in recall)]
    return "\n".join(lines)


def figures(report):
    plot = load_svg().line_plot_text
    return {f"{FIGURES}/xattn_recall_{name}.svg":
            plot(f"Recall by density: {name}", "density", "recall",
                 {method: list(zip(report["densities"], recall)) for method, recall in methods.items()})
            for name, methods in report["recall"].items()}


def wanted():
    recall = read(RESULTS / "xattn_recall.json")
    return {PAGE: with_blocks(PAGE, measured=measured(read(RESULTS / "gpu-h200/peer_xattn.json")), recall=recall_tables(recall)),
            **figures(recall)}
