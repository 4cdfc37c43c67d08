"""The table of docs/architecture.md that says which implementation takes each call of a step.

It comes from `dsv4 inspect ops --step` of the cuda build, a dry run that needs no GPU. Where that program is not built
the page is left alone: ./check compares it after it has built the program.
"""

import json
import subprocess

from common import ROOT, row, table, with_blocks

PAGE = "docs/architecture.md"
PROGRAM = ROOT / "build/cuda/bin/dsv4"
STEP = ["inspect", "ops", "--step", "flash", "--experts", "k3-e4m3", "--tokens", "1,8,32,64,4096", "--device-info", "h200"]


def cell(calls):
    """The implementations of an op in one step; how often each, where there are several."""
    counts = {}
    for call in calls:
        counts[call["impl"]] = counts.get(call["impl"], 0) + call["calls"]
    if len(counts) < 2:
        return "".join(f"`{impl}`" for impl in counts) or "-"
    return ", ".join(f"`{impl}` {count}" for impl, count in counts.items())


def lines_of(report):
    tables = report["tables"]
    # Ops that the model calls, then those that only `parts` call.
    ops = {call["op"]: None for depth in (0, 1, 2) for step in tables for call in step["calls"] if min(call["depth"], 2) == depth}
    head = ["op", *(f"{step['tokens']} tokens" if step["tokens"] > 1 else "1 token" for step in tables)]
    return table(" | ".join(head), *(
        row(f"`{op}`", *(cell([call for call in step["calls"] if call["op"] == op]) for step in tables)) for op in ops))


def wanted():
    if not PROGRAM.exists():
        return {}
    found = subprocess.run([PROGRAM, *STEP, "--json"], capture_output=True, text=True, check=True).stdout
    text = "\n".join(["```", " ".join(["dsv4", *STEP]), "```", "", *lines_of(json.loads(found))])
    return {PAGE: with_blocks(PAGE, step=text)}
