#!/usr/bin/env python3
"""What fits where when experts may be in host memory: bench/results/experts_plan.json, the table of
docs/experts-in-host-memory.md.

    tools/measure_plan.py build/cpu/bin/dsv4

Needs no GPU: `dsv4 plan` computes from shapes.
"""

import json
import pathlib
import subprocess
import sys

OUT = pathlib.Path(__file__).resolve().parent.parent / "bench/results/experts_plan.json"
# Memory that a program can use, and what is kept free, GiB.
CARDS = (("H200 141 GB", "139", "6"), ("80 GB", "78", "6"), ("48 GB", "44.5", "2.5"), ("24 GB", "23.5", "1.5"))
MODELS = (("Flash K3", "flash", "k3"), ("Flash FP4", "flash", "mxfp4"), ("Flash K5", "flash", "k5"),
          ("Pro K2", "pro", "k2"), ("Pro K3", "pro", "k3"), ("Pro FP4", "pro", "mxfp4"))


def plan(binary, release, experts, memory, reserve):
    command = [binary, "plan", "--synthetic", release, "--experts", experts, "--gpus", "1xh200", "--gpu-memory", memory + "G",
               "--reserve", reserve, "--experts-memory", "auto", "--host-memory", "4T", "--json"]
    result = subprocess.run(command, capture_output=True, text=True)
    if "has room for" in result.stderr or "too few for experts" in result.stderr:
        return None
    if result.returncode != 0:
        sys.exit(result.stderr)
    fit = json.loads(result.stdout)["experts_in_host_memory"]
    return {key: fit[key] for key in ("experts", "expert_bytes", "resident", "host_bytes", "token_bytes")}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    rows = [{"model": title, "cards": {name: plan(sys.argv[1], release, experts, memory, reserve)
                                       for name, memory, reserve in CARDS}}
            for title, release, experts in MODELS]
    OUT.write_text(json.dumps({"command": "tools/measure_plan.py build/cpu/bin/dsv4", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
