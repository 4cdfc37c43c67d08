#!/usr/bin/env python3
"""The table of executions in fuzz/README.md from bench/results/fuzz.json.

    tools/fuzz_page.py            rewrites the table
    tools/fuzz_page.py --add      first replaces the fuzzers that build/fuzz/runs.jsonl has (written by fuzz/run.sh), each
                                  by the sum of its runs
    tools/fuzz_page.py --check    exit 1 when the table is not up to date
"""

import json
import sys

from generated import ROOT, between_marks, settle

PAGE, RESULTS, RUNS = "fuzz/README.md", ROOT / "bench/results/fuzz.json", ROOT / "build/fuzz/runs.jsonl"


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


def table(records):
    lines = ["| fuzzer | executions | per CPU second | date | commit | runs that failed |", "|---|---|---|---|---|---|"]
    for r in sorted(records, key=lambda r: r["fuzzer"]):
        rate = "not kept" if r["cpu_s"] is None else f"{r['executions'] / max(r['cpu_s'], 0.1):,.0f}"
        lines.append(f"| `{r['fuzzer']}` | {r['executions']:,} | {rate} | {r['date']} | {r['commit']} | {r['failed']} |")
    return "\n".join(lines)


def main():
    records = {r["fuzzer"]: r for r in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    if "--add" in sys.argv[1:]:
        records |= summed(map(json.loads, RUNS.read_text().splitlines()))
        RESULTS.write_text("[\n" + ",\n".join(json.dumps(records[name]) for name in sorted(records)) + "\n]\n")
    sys.exit(settle({PAGE: between_marks(PAGE, "executions", table(records.values()))}, "tools/fuzz_page.py"))


if __name__ == "__main__":
    main()
