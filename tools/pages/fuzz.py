"""The table of executions in fuzz/README.md from bench/results/fuzz.json."""

import json

from common import RESULTS, ROOT, read, row, table, with_blocks

PAGE = "fuzz/README.md"
COUNTS, RUNS = RESULTS / "fuzz.json", ROOT / "build/fuzz/runs.jsonl"


def summed(runs):
    """One record per fuzzer: executions and CPU time of all runs, the last date and commit, runs that did not pass."""
    found = {}
    for run in runs:
        record = found.setdefault(run["fuzzer"], {"fuzzer": run["fuzzer"], "executions": 0, "cpu_s": 0, "failed": 0})
        record["executions"] += run["executions"]
        record["cpu_s"] = round(record["cpu_s"] + sum(run["cpu_s"]), 1)
        record["failed"] += run["status"] != 0
        record |= {"date": run["date"], "commit": run["commit"]}
    return found


def add_runs():
    """Replaces the fuzzers that fuzz/run.sh ran, each by the sum of its runs."""
    records = {r["fuzzer"]: r for r in read(COUNTS)} | summed(map(json.loads, RUNS.read_text().splitlines()))
    COUNTS.write_text("[\n" + ",\n".join(json.dumps(records[name]) for name in sorted(records)) + "\n]\n")


def line_of(record):
    rate = "not kept" if record["cpu_s"] is None else f"{record['executions'] / max(record['cpu_s'], 0.1):,.0f}"
    return row(f"`{record['fuzzer']}`", f"{record['executions']:,}", rate, record["date"], record["commit"], record["failed"])


def wanted():
    records = sorted(read(COUNTS), key=lambda r: r["fuzzer"])
    lines = table("fuzzer | executions | per CPU second | date | commit | runs that failed", *map(line_of, records))
    return {PAGE: with_blocks(PAGE, executions="\n".join(lines))}
