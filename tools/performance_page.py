#!/usr/bin/env python3
"""docs/performance.md and the table of README.md from bench/results/cpu-*.json. Numbers are never typed by hand.

    tools/performance_page.py            rewrites both
    tools/performance_page.py --check    exit 1 when they are not up to date
"""

import json
import re
import sys

from generated import ROOT, between_marks, settle

LABELS = {"fp8_block": "FP8 128x128", "mxfp4": "MXFP4", "nvfp4": "NVFP4", "bf16": "BF16", "f16": "F16", "f32": "F32",
          "k2": "K=2", "k3": "K=3", "k4": "K=4", "k5": "K=5"}


def shape(name):
    return {key: int(value) for key, value in re.findall(r"([a-z]+):(\d+)", name)}


def label(name):
    op, fmt = name.split("/")[:2]
    s = shape(name)
    size = f", {s['n']} x {s['k']}" if "n" in s else ", Flash shapes"
    kind = "matrix-vector" if s["t"] == 1 else f"{s['t']} tokens"
    return f"{op.replace('_bench', '')} {LABELS[fmt]}, {kind}{size}"


def weight_rate(row, threads):
    """Weights multiplied per second and core; for many tokens a weight is decoded once, and the number says nothing."""
    if shape(row["name"])["t"] != 1:
        return ""
    return f"{row['gflop_per_s'] / 2 / threads:.1f}e9"


def machine_section(result):
    roofs, demo = result["roofs"], result["demo"]
    lines = [f"## {result['machine']}", "",
             f"{result['cpu']}, {roofs['threads']} threads, {result['date']}, commit {result['commit']}. Roofs of the same run: "
             f"read {roofs['read_gb_per_s']:.1f} GB/s, f32 FMA {roofs['fma_gflop_per_s']:.0f} GFLOP/s.", "",
             "```", result["command"], "```", "",
             "| op | time | GB/s | of read roof | GFLOP/s | of FMA roof | weights/s and core |", "|---|---|---|---|---|---|---|"]
    for row in result["ops"]:
        lines.append(f"| {label(row['name'])} | {row['us'] / 1000:.2f} ms | {row['gb_per_s']:.1f} | {row['percent_read']:.0f} % "
                     f"| {row['gflop_per_s']:.0f} | {row['percent_fma']:.0f} % | {weight_rate(row, roofs['threads'])} |")
    lines += ["", "| demo model, official numerics | |", "|---|---|",
              f"| decode, one sequence | {demo['decode_tokens_per_s']:.0f} tokens/s |",
              f"| prefill, {demo['prompt_tokens']} tokens | {demo['prefill_tokens_per_s']:.0f} tokens/s |",
              f"| process start to end of the first token | {demo['process_to_first_token_s'] * 1000:.0f} ms |", ""]
    return lines


def page(results):
    lines = ["# Performance", "",
             "Made by `tools/performance_page.py` from `bench/results/*.json`. Weights come from a pool larger than the caches; a share is "
             "of the roof measured in the same run.", ""]
    for result in results:
        lines += machine_section(result)
    return "\n".join(lines)


def readme_table(results):
    lines = []
    for result in results:
        demo, ops = result["demo"], {row["name"]: row for row in result["ops"]}
        lines += [f"{result['machine']} ({result['cpu']}), {result['date']}, `{result['command'].split()[0]}`:", "",
                  "| what | measured | share of the measured roof |", "|---|---|---|"]
        for fmt in ("fp8_block", "mxfp4"):
            row = ops[f"linear_bench/{fmt}/t:1/n:16384/k:16384"]
            lines.append(f"| {label(row['name'])} | {row['gb_per_s']:.1f} GB/s | {row['percent_read']:.0f} % of read bandwidth |")
        row = ops["linear_bench/fp8_block/t:256/n:4096/k:4096"]
        lines.append(f"| {label(row['name'])} | {row['gflop_per_s']:.0f} GFLOP/s | {row['percent_fma']:.0f} % of f32 FMA |")
        lines += [f"| demo: decode / prefill of {demo['prompt_tokens']} tokens | {demo['decode_tokens_per_s']:.0f} / "
                  f"{demo['prefill_tokens_per_s']:.0f} tokens/s | |",
                  f"| demo: process start to first token | {demo['process_to_first_token_s'] * 1000:.0f} ms | |"]
    return "\n".join(lines)


def main():
    results = [json.loads(path.read_text()) for path in sorted((ROOT / "bench/results").glob("cpu-*.json"))]
    wanted = {"docs/performance.md": page(results),
              "README.md": between_marks("README.md", "measured", readme_table(results))}
    sys.exit(settle(wanted, "tools/performance_page.py"))


if __name__ == "__main__":
    main()
