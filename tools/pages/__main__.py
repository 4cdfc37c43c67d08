"""Writes the pages and tables that are made from bench/results. Numbers are never typed by hand.

    python3 tools/pages [PAGE ...]            writes all pages, or those named
    python3 tools/pages --check [PAGE ...]    exit 1 when a page is not up to date, or claims what was not measured
    python3 tools/pages --add fuzz            first adds the runs of fuzz/run.sh to bench/results/fuzz.json

Each PAGE is a module here with wanted(), which returns {path: text}, and perhaps broken(), which returns claims of the
page that its numbers do not support.
"""

import argparse
import sys

import architecture
import common
import experts_plan
import experts_store
import fuzz
import kbit
import performance
import prefill
import quality
import quantize
import ranks
import rounds
import xattention

PAGES = {module.__name__: module for module in (performance, prefill, quality, xattention, fuzz, architecture, experts_plan, experts_store, rounds, kbit, ranks, quantize)}


def main():
    parser = argparse.ArgumentParser(prog=f"python3 {common.COMMAND}", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is not up to date")
    parser.add_argument("--add", action="store_true", help="first add build/fuzz/runs.jsonl to bench/results/fuzz.json")
    parser.add_argument("page", nargs="*", metavar="PAGE", help=", ".join(PAGES))
    options = parser.parse_args()
    unknown = [name for name in options.page if name not in PAGES]
    if unknown:
        parser.error(f"no page {', '.join(unknown)}: one of {', '.join(PAGES)}")
    if options.add:
        fuzz.add_runs()
    good = True
    for module in (PAGES[name] for name in options.page or PAGES):
        good &= common.settle(module.wanted(), options.check) or not options.check
        for claim in module.broken() if hasattr(module, "broken") else ():
            print(f"claim of {module.PAGE} not supported by the measurement: {claim}", file=sys.stderr)
            good = False
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
