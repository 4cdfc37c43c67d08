#!/usr/bin/env python3
"""What fits where: bench/results/experts_plan.json, with experts in host memory, the table of
docs/experts-in-host-memory.md; bench/results/ranks_plan.json, over several GPUs, a table of the page about them.

    tools/measure_plan.py build/cpu/bin/dsv4 [experts|ranks]

Needs no GPU: `dsv4 plan` computes from shapes.
"""

import json
import pathlib
import subprocess
import sys

OUT = pathlib.Path(__file__).resolve().parent.parent / "bench/results"
# Memory that a program can use, and what is kept free, GiB.
CARDS = (("H200 141 GB", "139", "6"), ("80 GB", "78", "6"), ("48 GB", "44.5", "2.5"), ("24 GB", "23.5", "1.5"))
MODELS = (("Flash K3", "flash", "k3"), ("Flash FP4", "flash", "mxfp4"), ("Flash K5", "flash", "k5"),
          ("Pro K2", "pro", "k2"), ("Pro K3", "pro", "k3"), ("Pro FP4", "pro", "mxfp4"))


# Title, release, experts, machines of several GPUs.
DIVIDED = (("Flash FP4", "flash", "mxfp4", ("2xh200", "4xh100", "4xh200", "8xh200")), ("Flash K3", "flash", "k3-e4m3", ("2xh100", "4xh100")),
           ("Pro K2", "pro", "k2-e4m3", ("4xh200", "8xh100", "8xh200")), ("Pro K3", "pro", "k3-e4m3", ("8xh200",)),
           ("Pro FP4", "pro", "mxfp4", ("8xh200",)))


def output_of(command):
    return subprocess.run([*command, "--json"], capture_output=True, text=True)


def plan(binary, release, experts, memory, reserve):
    command = [binary, "plan", "--synthetic", release, "--experts", experts, "--gpus", "1xh200", "--gpu-memory", memory + "G",
               "--reserve", reserve, "--experts-memory", "auto", "--host-memory", "4T"]
    result = output_of(command)
    if "has room for" in result.stderr or "too few for experts" in result.stderr:
        return None
    if result.returncode != 0:
        sys.exit(result.stderr)
    fit = json.loads(result.stdout)["experts_in_host_memory"]
    return {key: fit[key] for key in ("experts", "expert_bytes", "resident", "host_bytes", "token_bytes")}


def divided(binary, title, release, experts, machine):
    result = output_of([binary, "plan", "--synthetic", release, "--experts", experts, "--gpus", machine])
    if result.returncode != 0:
        sys.exit(result.stderr)
    plan = json.loads(result.stdout)
    fit = next(one for one in plan["machines"] if one["machine"] == machine)
    weights = [rank["weights_bytes"] for rank in plan["ranks"]]
    most = {key: max(rank[key] for rank in plan["ranks"]) for key in ("received_bytes_per_token", "received_bytes_per_prompt_token")}
    return {"model": title, "machine": machine, "context": plan["context"], "weights_bytes": {"least": min(weights), "most": max(weights)},
            "copies_bytes": plan["ranks"][0]["weights_bytes"] - plan["ranks"][0]["own_bytes"], "kv_bytes_per_token": plan["kv_bytes_per_token"],
            **most, **{key: fit[key] for key in ("room_bytes", "need_bytes", "fits", "tried", "max_context_tokens", "max_sequences")}}


def write(name, rows):
    command = f"tools/measure_plan.py build/cpu/bin/dsv4 {name.split('_')[0]}"
    (OUT / name).write_text(json.dumps({"command": command, "rows": rows}, indent=1) + "\n")


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["experts"], ["ranks"]):
        sys.exit(__doc__)
    binary, wanted = sys.argv[1], sys.argv[2:] or ["experts", "ranks"]
    if "experts" in wanted:
        write("experts_plan.json", [{"model": title, "cards": {name: plan(binary, release, experts, memory, reserve)
                                                                for name, memory, reserve in CARDS}}
                                    for title, release, experts in MODELS])
    if "ranks" in wanted:
        write("ranks_plan.json", [divided(binary, title, release, experts, machine)
                                  for title, release, experts, machines in DIVIDED for machine in machines])


if __name__ == "__main__":
    main()
