#!/usr/bin/env python3
"""Measures the demo model beside busy neighbors: is the default number and waiting of threads a good one?

    tools/measure_threads.py [--build build/cpu] [--neighbors 0,1,2,4] [--rounds 5] [--spin 0,1000,300000] [--json FILE]

A neighbor is a process that computes without pause. For every number of neighbors each setting runs once per round,
in turn, so that other work on the machine hits all of them alike; medians are compared. Settings: the default, one
thread, all CPUs with GCC's own spinning, passive waiting, twice the threads, and --spin rounds of spinning.
Fails when the default is more than 10 % slower than the best setting, or slower than one thread, beyond the spread of
the rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROMPT_BYTES = 13200  # 2,829 tokens
NEW_TOKENS = 100


def settings(spins):
    cpus = str(len(os.sched_getaffinity(0)))
    table = {
        "default": ({}, []),
        "1 thread": ({}, ["-t", "1"]),
        "library's own": ({"GOMP_SPINCOUNT": "300000"}, []),
        "passive": ({"OMP_WAIT_POLICY": "passive"}, []),
        "twice the threads": ({}, ["-t", str(2 * int(cpus))]),
    }
    for spin in spins:
        table[f"spin {spin}"] = ({"GOMP_SPINCOUNT": spin}, [])
    return table


class Neighbors:
    """Processes that compute until the block ends."""

    def __init__(self, count):
        self.count = count

    def __enter__(self):
        self.processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(self.count)]

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()


def measure(binary, prompt, setting):
    environment, arguments = setting
    base = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    report = subprocess.run([binary, "run", "demo", "-f", prompt, "-n", str(NEW_TOKENS), "--temp", "0", "--stats",
                             "json", *arguments], check=True, capture_output=True, text=True,
                            env=base | environment)
    stats = json.loads(report.stderr.splitlines()[-1])
    return stats["prefill_tokens_per_second"], stats["decode_tokens_per_second"]


def compare(neighbors, rates):
    """Prints a table; returns what is wrong with the default."""
    medians = {name: statistics.median(r[0] for r in runs) for name, runs in rates.items()}
    best = max(medians, key=medians.get)
    print(f"{neighbors} neighbors{'prefill tok/s':>28}{'lowest':>10}{'highest':>10}{'decode tok/s':>14}")
    for name, runs in rates.items():
        prefill = [r[0] for r in runs]
        print(f"  {name:<24}{medians[name]:>14.0f}{min(prefill):>10.0f}{max(prefill):>10.0f}"
              f"{statistics.median(r[1] for r in runs):>14.0f}{'  best' if name == best else ''}")
    highest = max(r[0] for r in rates["default"])
    wrong = []
    if highest < 0.9 * medians[best]:
        wrong.append(f"{neighbors} neighbors: {best} reaches {medians[best]:.0f}, the default at most {highest:.0f}")
    if highest < medians["1 thread"]:
        wrong.append(f"{neighbors} neighbors: one thread reaches {medians['1 thread']:.0f}, the default {highest:.0f}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(ROOT / "build" / "cpu"))
    parser.add_argument("--neighbors", default="0,1,2,4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--spin", default="")
    parser.add_argument("--json", help="file for all rates")
    options = parser.parse_args()
    binary = str(Path(options.build) / "bin" / "dsv4")
    table = settings([s for s in options.spin.split(",") if s])
    wrong, everything = [], {}
    with tempfile.TemporaryDirectory() as folder:
        prompt = Path(folder) / "prompt.txt"
        prompt.write_bytes((ROOT / "tests/golden/demo/heldout.txt").read_bytes()[:PROMPT_BYTES])
        for neighbors in map(int, options.neighbors.split(",")):
            rates = {name: [] for name in table}
            with Neighbors(neighbors):
                for _ in range(options.rounds):
                    for name, setting in table.items():
                        rates[name].append(measure(binary, str(prompt), setting))
            wrong += compare(neighbors, rates)
            everything[neighbors] = rates
    if options.json:
        Path(options.json).write_text(json.dumps(everything))
    print("\n".join(wrong) or "the default is within 10 % of the best setting and not slower than one thread")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
