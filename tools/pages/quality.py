"""The tables of docs/quality.md from bench/results/quality_*.json (tools/measure_quality.py)."""

from common import RESULTS, percent, read, row, table, with_blocks

PAGE = "docs/quality.md"


def results():
    return [read(path) for path in sorted(RESULTS.glob("quality_*.json"))]


def broken_claims(result):
    """Claims of the page that the numbers do not support."""
    experts = {(row["experts"], row["scales"]): row for row in result["rows"] if row["dense"] == "keep"}
    for name in ("keep", "k4-e2m1"):
        found = experts[name, "search"]
        if found["kld"]["max"] != 0 or found["top1"] != 1:
            yield f"{name} equals the official model: largest KLD {found['kld']['max']}"
    ladder = [f"k{k}-bnf" for k in (5, 4, 3, 2)]
    for scales in ("reference", "search"):
        for more, fewer in zip(ladder, ladder[1:]):
            if not experts[more, scales]["kld"]["mean"] < experts[fewer, scales]["kld"]["mean"]:
                yield f"{more} is nearer than {fewer}, {scales} scales"
    for name in ladder:
        if not experts[name, "search"]["kld"]["mean"] < experts[name, "reference"]["kld"]["mean"]:
            yield f"searched scales are nearer than reference scales at {name}"
    dense = {(row["dense"], row["scales"]): row for row in result["rows"] if row["experts"] == "keep"}
    for name in ("nvfp4", "mxfp4"):
        searched, plain = (dense.get((name, scales)) for scales in ("search", "reference"))
        if searched and plain and not searched["kld"]["mean"] < plain["kld"]["mean"]:
            yield f"searched scales are nearer than plain ones at dense {name}"
    with_imatrix = experts.get(("k2-e4m3", "imatrix"))
    if with_imatrix and not with_imatrix["kld"]["mean"] < experts["k2-e4m3", "search"]["kld"]["mean"]:
        yield "an imatrix is nearer than none at k2-e4m3"


def broken():
    return [claim for result in results() for claim in broken_claims(result)]


def line_of(r):
    name = "FP4 (official)" if r["experts"] == r["dense"] == "keep" else r["experts"] if r["dense"] == "keep" else f"FP4, dense {r['dense']}"
    exact, kld = r["sqnr_db"] is None, r["kld"]
    return row(name, "-" if exact else r["scales"], f"{r['bits']:.2f}", f"{r['file_bytes'] / 2**20:.2f}",
               "exact" if exact else f"{r['sqnr_db']:.2f}", f"{r['perplexity']:.4f}",
               f"{r['perplexity_ratio']:.4f} ± {r['perplexity_ratio_error']:.4f}", f"{kld['mean']:.6f} ± {kld['mean_error']:.6f}",
               f"{kld['p99']:.4f}", f"{100 * r['top1']:.2f}", *(percent(recall["right"] / recall["total"]) for recall in r["recall"]))


def measured_later(result):
    rows = sorted({(r["measured"].get("only", r["scales"]), r["measured"]["date"], r["measured"]["commit"])
                   for r in result["rows"] if "measured" in r})
    return [line for only, date, commit in rows for line in (f"Rows with {only}: {date}, commit {commit}, the same command with `--only {only}`.", "")]


def section(result):
    first, rounding = result["rows"][0], result["official_numerics"]
    head = ["experts", "scales", "bits", "MiB", "SQNR dB", "ppl", "ppl ratio", "mean KLD", "99 % KLD", "top-1 %",
            *(f"recall {r['distance']}" for r in first["recall"])]
    lines = [f"Model `{result['model']}`, `{result['text']}`, {first['tokens']} tokens, {result['prompts']} recall prompts per "
             f"distance; {result['date']}, commit {result['commit']}:", "", "<!-- not run: minutes -->", "```bash",
             result["command"], "```", "",
             *table(" | ".join(head), *map(line_of, result["rows"])), "",
             *measured_later(result),
             f"The official model in official numerics against itself in exact ones: mean KLD {rounding['kld']['mean']:.6f} ± "
             f"{rounding['kld']['mean_error']:.6f}, 99 % KLD {rounding['kld']['p99']:.4f}, top-1 {100 * rounding['top1']:.2f} %."]
    return "\n".join(lines)


def wanted():
    return {PAGE: with_blocks(PAGE, measured="\n\n".join(map(section, results())) or "Not measured yet.")}
