#!/usr/bin/env python3
"""Measures the CPU engine on this machine and writes one JSON file; tools/pages makes the page.

    tools/measure_cpu.py [--build build/cpu] --name "2 cores of Xeon ..." --out bench/results/cpu.json

Peaks (read bandwidth, f32 FMA) and op speeds come from one run of dsv4_bench_cpu; the demo model's from
`dsv4 run demo --stats json` and `dsv4 eval logits --json`, median of several. Run it on an idle machine.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

OPS = ("linear/.*t:1/n:16384|linear/(fp8_block|mxfp4|k3)/t:256|experts/mxfp4|"
       "experts/k[23]/t:(1|64)")
RUNS = 5
PROMPT_TOKENS = 3000


def run(command):
    return subprocess.run(command, check=True, capture_output=True, text=True)


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def ops(binary, folder):
    out = folder / "ops.json"
    run([binary, f"--benchmark_filter={OPS}", "--benchmark_min_time=0.5",
         f"--benchmark_out={out}", "--benchmark_out_format=json"])
    report = json.loads(out.read_text())
    context = report["context"]
    rows = [{"name": b["name"].replace("/cpu/real_time", ""), "us": b["real_time"],
             "gb_per_s": b["GB/s"], "gflop_per_s": b["GFLOP/s"],
             "percent_read": b["percent_read"], "percent_fma": b["percent_fma"]}
            for b in report["benchmarks"]]
    roofs = {"threads": int(context["threads"]), "read_gb_per_s": float(context["read_GB_per_s"]),
             "fma_gflop_per_s": float(context["fma_GFLOP_per_s"])}
    return roofs, rows


def demo(binary, folder):
    stats, start = [], []
    for seed in range(RUNS):
        report = run([binary, "run", "demo", "-p", "", "-n", "400", "--seed", str(seed), "--stats", "json"])
        stats.append(json.loads(report.stderr))
        begin = time.perf_counter()
        run([binary, "run", "demo", "-p", "", "-n", "1", "--seed", str(seed)])
        start.append(time.perf_counter() - begin)
    ids = folder / "ids.txt"
    ids.write_text(" ".join(str(7919 * i % 1400 + 3) for i in range(PROMPT_TOKENS)))
    seconds = [json.loads(run([binary, "eval", "logits", "demo", "--ids", f"@{ids}", "--json",
                               "-o", str(folder / "logits")]).stdout)["seconds"] for _ in range(RUNS)]
    return {"decode_tokens_per_s": statistics.median(s["decode_tokens_per_second"] for s in stats),
            "prefill_tokens_per_s": PROMPT_TOKENS / statistics.median(seconds),
            "prompt_tokens": PROMPT_TOKENS,
            "process_to_first_token_s": statistics.median(start)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/cpu")
    parser.add_argument("--name", required=True, help="description of the machine")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    binaries = Path(args.build) / "bin"
    with tempfile.TemporaryDirectory() as temporary:
        roofs, rows = ops(str(binaries / "dsv4_bench_cpu"), Path(temporary))
        result = {"machine": args.name, "cpu": cpu_name(), "date": time.strftime("%Y-%m-%d"),
                  "commit": run(["git", "rev-parse", "--short", "HEAD"]).stdout.strip(),
                  "command": f'tools/measure_cpu.py --name "{args.name}" --out {args.out}',
                  "roofs": roofs, "ops": rows, "demo": demo(str(binaries / "dsv4"), Path(temporary))}
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
