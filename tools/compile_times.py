#!/usr/bin/env python3
"""Names the translation units that took longer to compile than the budget of 30 seconds.

usage: compile_times.py [BUILD ...] [--budget SECONDS] [--top N] [--strict]

Reads the ninja log of each build folder (default: every build/*/.ninja_log): the time that the last
compilation of each object took, which is next to nothing where ccache had it. Wall time depends on
what else the machine does, so this only reports; --strict exits with 1 where a unit is over the
budget, for a machine with nothing else to do. A unit over the budget is to be split.
"""

import argparse
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def read_log(text):
    """Seconds of the last compilation of each object."""
    seconds = {}
    for line in text.splitlines():
        fields = line.split("\t")
        if line.startswith("#") or len(fields) < 4 or not fields[3].endswith(".o"):
            continue
        seconds[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000
    return seconds


def unit(output):
    """CMakeFiles/dsv4_ops.dir/dsv4/ops/op.cc.o -> dsv4/ops/op.cc"""
    return output.partition(".dir/")[2].removesuffix(".o") or output


def report(name, seconds, budget, top):
    """Lines about one build, and how many units are over the budget."""
    slowest = sorted(seconds.items(), key=lambda item: -item[1])
    over = [item for item in slowest if item[1] > budget]
    lines = [f"{name}: {len(seconds)} units, {sum(seconds.values()):.0f} s in all, {len(over)} over {budget:g} s"]
    lines += [f"  {time:6.1f} s  {unit(output)}" for output, time in slowest[:max(top, len(over))]]
    return lines, len(over)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="*", type=pathlib.Path)
    parser.add_argument("--budget", type=float, default=30)
    parser.add_argument("--top", type=int, default=0, help="name at least so many units")
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args()
    builds = options.build or sorted(log.parent for log in ROOT.glob("build/*/.ninja_log"))
    total = 0
    for build in builds:
        log = build / ".ninja_log"
        if not log.is_file():
            sys.exit(f"compile_times: {build} has no .ninja_log: it is no build folder of ninja")
        lines, over = report(build.name, read_log(log.read_text()), options.budget, options.top)
        print("\n".join(lines))
        total += over
    if not builds:
        sys.exit("compile_times: nothing has been built below build/")
    sys.exit(1 if options.strict and total > 0 else 0)


if __name__ == "__main__":
    main()
