#!/usr/bin/env python3
"""Runs dsv4 on hostile input of ten kinds, and classifies how each run ends.

    tests/hostile/campaign.py [--binary build/cpu/bin/dsv4] [--count 300] [--seed 1] [--seconds 0] [--workers 1]
                              [--kind folders,values,...] [--keep FOLDER]

A case is some input and one to six command lines on it (the modules of the kinds say which). Each command has to end by
itself within a time and memory limit, and an error has to be one short line without control characters or words of a
library (outcome.py). The same seed gives the same cases. With --seconds the campaign ends after that time. Prints one
line per finding and a summary; exit code 1 when there was a finding.
"""

import argparse
import collections
import importlib
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import units
from outcome import classify, execute

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = ROOT / "tests/golden/demo/heldout.txt"
SHARES = {"folders": 6, "values": 2, "tiny": 2, "references": 1, "inputs": 2, "words": 5, "units": 2, "serving": 1, "chats": 3,
          "surroundings": 3}  # cases of a kind, of each 27
KINDS = list(SHARES)


class Place:
    """Where a case is made: the models that cases start from, and an empty folder."""

    def __init__(self, binary, shared, folder):
        self.binary, self.folder = binary, folder
        self.demo, self.k3 = ROOT / "models/demo", shared / "k3"
        self.reference, self.completion, self.units = shared / "reference", shared / "completion", shared / "units"
        self.text = TEXT

    def clear(self):
        for left in self.folder.iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


def prepare(binary, shared):
    """What several kinds start from: a k-bit model, a file of reference logits, the names of all options."""
    def call(*words):
        return subprocess.run([binary, *words], check=True, capture_output=True).stdout
    call("quantize", ROOT / "models/demo", "-o", shared / "k3", "--experts", "k3")
    call("eval", "kld", ROOT / "models/demo", "--save-reference", shared / "reference", "--ids",
         ",".join(str(7 * i % 1500) for i in range(40)))
    (shared / "completion").write_bytes(call("completion", "bash"))
    units.prepare(binary, shared / "units", TEXT.read_bytes()[:3600])


def run_case(task):
    """Returns the kind, how the runs ended, and what was found."""
    kind, number, options, shared, scratch = task
    folder = Path(scratch) / f"worker{os.getpid()}"
    folder.mkdir(exist_ok=True)
    place = Place(options.binary, Path(shared), folder)
    place.clear()
    rng = random.Random(f"{options.seed} {kind} {number}")
    ends, findings = [], []
    what, runs = importlib.import_module(kind).case(rng, place)
    for run in runs:
        done = execute(options.binary, run, folder)
        end = classify(run, done)
        ends.append(end if end in ("ok", "error") else "finding")
        if end not in ("ok", "error"):
            findings.append(f"{kind} {number}: {end}: {run.words!r:.200} on {what}: {done.err[:300]!r}")
    if findings and options.keep:
        shutil.copytree(folder, Path(options.keep) / f"{kind}{number}", symlinks=True, dirs_exist_ok=True)
    return kind, ends, findings


def tasks_of(options, shared, scratch):
    """Cases of the kinds side by side, so that a campaign cut short has seen all kinds."""
    kinds = options.kind.split(",")
    cycle = [kind for round in range(max(SHARES.values())) for kind in kinds if SHARES[kind] > round]
    for i in range(options.first, options.first + options.count):
        yield cycle[i % len(cycle)], i, options, str(shared), str(scratch)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/cpu/bin/dsv4"))
    parser.add_argument("--count", type=int, default=300, help="number of cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--kind", default=",".join(KINDS))
    parser.add_argument("--keep", help="folder for the input of those that gave a finding")
    options = parser.parse_args()
    options.binary = str(Path(options.binary).resolve())
    os.environ["DSV4_MODELS"] = str(ROOT / "models")
    begin = time.monotonic()
    ends, cases, findings = collections.defaultdict(collections.Counter), 0, 0
    with tempfile.TemporaryDirectory() as shared, tempfile.TemporaryDirectory() as scratch:
        prepare(options.binary, Path(shared))
        with multiprocessing.Pool(options.workers) as pool:
            for kind, ended, found in pool.imap_unordered(run_case, tasks_of(options, shared, scratch)):
                ends[kind].update(ended)
                cases += 1
                findings += len(found)
                for line in found:
                    print(line, flush=True)
                if options.seconds and time.monotonic() - begin > options.seconds:
                    pool.terminate()
                    break
    total = sum((counter for counter in ends.values()), collections.Counter())
    for kind, counter in sorted(ends.items()):
        print(f"  {kind}: " + ", ".join(f"{count} {end}" for end, count in counter.most_common()))
    print(f"{cases} cases, {sum(total.values())} runs in {time.monotonic() - begin:.0f} s: {total['ok']} ok, "
          f"{total['error']} clean errors, {findings} findings")
    sys.exit(1 if findings or cases == 0 else 0)


if __name__ == "__main__":
    main()
