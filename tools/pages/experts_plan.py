"""The table of docs/experts-in-host-memory.md from bench/results/experts_plan.json (tools/measure_plan.py)."""

from common import RESULTS, read, row, table, with_blocks

PAGE = "docs/experts-in-host-memory.md"
GIB = 2**30


def cell(fit):
    if fit is None:
        return "-"
    return "all" if fit["resident"] == fit["experts"] else f"{100 * fit['resident'] / fit['experts']:.1f} %"


def line_of(result):
    some = next(fit for fit in result["cards"].values() if fit is not None)
    host = some["experts"] * some["expert_bytes"] / GIB
    return row(result["model"], f"{some['expert_bytes'] / 1e6:.2f}", f"{host:.0f}", f"{some['token_bytes'] / GIB:.2f}",
               *map(cell, result["cards"].values()))


def wanted():
    result = read(RESULTS / "experts_plan.json")
    head = ["model", "MB of an expert", "all experts", "read by a token", *result["rows"][0]["cards"]]
    return {PAGE: with_blocks(PAGE, plan="\n".join(table(" | ".join(head), *map(line_of, result["rows"]))))}
