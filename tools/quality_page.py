#!/usr/bin/env python3
"""The tables of docs/quality.md from bench/results/quality_*.json. Numbers are never typed by hand.

    tools/quality_page.py            rewrites them
    tools/quality_page.py --check    exit 1 when they are not up to date, or contradict the page
"""

import json
import sys

from generated import ROOT, between_marks, settle

PAGE = "docs/quality.md"


def broken_claims(result):
    """Claims of the page that the numbers do not support."""
    experts = {(row["experts"], row["scales"]): row for row in result["rows"] if row["dense"] == "keep"}
    for name in ("keep", "k4-e2m1"):
        row = experts[name, "search"]
        if row["kld"]["max"] != 0 or row["top1"] != 1:
            yield f"{name} equals the official model: largest KLD {row['kld']['max']}"
    ladder = [f"k{k}-bnf" for k in (5, 4, 3, 2)]
    for scales in ("reference", "search"):
        for more, fewer in zip(ladder, ladder[1:]):
            if not experts[more, scales]["kld"]["mean"] < experts[fewer, scales]["kld"]["mean"]:
                yield f"{more} is nearer than {fewer}, {scales} scales"
    for name in ladder:
        if not experts[name, "search"]["kld"]["mean"] < experts[name, "reference"]["kld"]["mean"]:
            yield f"searched scales are nearer than reference scales at {name}"


def name_of(row):
    if row["experts"] == row["dense"] == "keep":
        return "FP4 (official)", "-"
    name = row["experts"] if row["dense"] == "keep" else f"FP4, dense {row['dense']}"
    return name, "-" if row["sqnr_db"] is None else row["scales"]


def line_of(row):
    name, scales = name_of(row)
    kld = row["kld"]
    sqnr = "exact" if row["sqnr_db"] is None else f"{row['sqnr_db']:.2f}"
    recall = " | ".join(f"{100 * r['right'] / r['total']:.0f} %" for r in row["recall"])
    return (f"| {name} | {scales} | {row['bits']:.2f} | {row['file_bytes'] / 2**20:.2f} | {sqnr} "
            f"| {row['perplexity']:.4f} | {row['perplexity_ratio']:.4f} ± {row['perplexity_ratio_error']:.4f} "
            f"| {kld['mean']:.6f} ± {kld['mean_error']:.6f} | {kld['p99']:.4f} | {100 * row['top1']:.2f} | {recall} |")


def table(result):
    first, rounding = result["rows"][0], result["official_numerics"]
    head = ["experts", "scales", "bits", "MiB", "SQNR dB", "ppl", "ppl ratio", "mean KLD", "99 % KLD", "top-1 %",
            *(f"recall {r['distance']}" for r in first["recall"])]
    lines = [f"Model `{result['model']}`, `{result['text']}`, {first['tokens']} tokens, {result['prompts']} recall prompts per "
             f"distance; {result['date']}, commit {result['commit']}:", "", "```", result["command"], "```", "",
             "| " + " | ".join(head) + " |", "|---" * len(head) + "|", *map(line_of, result["rows"]), "",
             f"The official model in official numerics against itself in exact ones: mean KLD {rounding['kld']['mean']:.6f} ± "
             f"{rounding['kld']['mean_error']:.6f}, 99 % KLD {rounding['kld']['p99']:.4f}, top-1 {100 * rounding['top1']:.2f} %."]
    return "\n".join(lines)


def main():
    results = [json.loads(path.read_text()) for path in sorted((ROOT / "bench/results").glob("quality_*.json"))]
    text = "\n\n".join(map(table, results)) or "Not measured yet."
    broken = [line for result in results for line in broken_claims(result)]
    for line in broken:
        print(f"claim of {PAGE} not supported by the measurement: {line}", file=sys.stderr)
    sys.exit(settle({PAGE: between_marks(PAGE, "measured", text)}, "tools/quality_page.py") or bool(broken))


if __name__ == "__main__":
    main()
