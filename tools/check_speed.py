#!/usr/bin/env python3
"""Compares the speeds of a run of tools/gpu_check.sh with those that are committed for its GPU, and fails where one is
below 90 % of them: a rate below 0.9 of the committed one, or a time above the committed one / 0.9.

    tools/check_speed.py RUN_FOLDER            compare; the last line says how many speeds hold
    tools/check_speed.py --record RUN_FOLDER   write the run's speeds into bench/results/minimums.json

minimums.json: {"least_share": 0.9, MACHINE: {REPORT: {SPEED: value}}}. MACHINE is a GPU, or "2x" and a GPU for ranks over
several (tools/multi_gpu_check.sh): a folder may have reports of both. REPORT is a file of the run folder without ".json", a
SPEED is named by speeds_of(). The reports of whole steps also have "of", which model was measured: another model is not
compared. A report that the run lacks is skipped, a speed that its report lacks fails. An op's speed is that of its fastest
implementation, so a table of ops may be given a second time under another name with other rows.

Exit status: 0 all hold, 1 some do not, 77 nothing to compare (another GPU, an empty folder), with the reason last.
"""

import argparse
import json
import pathlib
import sys

MINIMUMS = pathlib.Path(__file__).resolve().parent.parent / "bench/results/minimums.json"
BATCHES = (1, 8, 32, 64)  # sequences of a decode step


def step_speeds(report):
    """bench decode and bench prefill: tokens a second."""
    for r in report["results"]:
        if r.get("batch") in BATCHES:
            drafts = f", {r['draft_tokens']} drafts" if r.get("draft_tokens") else ""
            yield f"batch {r['batch']}, context {r['context']}{drafts}: tokens/s", r["tokens_per_second"]
        if "tokens" in r:
            yield f"prompt of {r['tokens']}: tokens/s", r["tokens_per_second"]


def op_speeds(report):
    """dsv4_bench_cuda: microseconds of the fastest implementation."""
    fastest = {}
    for r in report["results"]:
        if "us" in r:
            name = f"{r['op']} {r['shape']}: us"
            fastest[name] = min(r["us"], fastest.get(name, r["us"]))
    return fastest.items()


def sparse_mla_speeds(report):
    for r in report["results"]:
        yield f"{r['case']}: {r['unit']}", r["ours"]


def xattn_speeds(report):
    """Densities are random, so rows of equal stage and length differ by their order."""
    count = {}
    for r in report["results"]:
        what = r["what"], r["tokens"]
        count[what] = count.get(what, 0) + 1
        yield f"{r['what']}, {r['tokens']} tokens, {count[what]}: ms", r["ms"]["ours"]


def exchange_speeds(report):
    """bench exchange and bench/peer_exchange.py, which adds NCCL's time."""
    for r in report["results"]:
        yield f"exchange of {r['bytes']} bytes: us", r["us"]


def kbit_speeds(report):
    """What a call takes, of weights in rows with the codebook e4m3; of experts in images, too."""
    for r in report["results"]:
        if r["op"] == "kbit_moe":
            what = f"experts of {r['model']}, K = {r['k']}, {r['t']} tokens"
            yield f"{what}: us", r["us"]["chosen"]
            if "image" in r["us"]:
                yield f"{what}, images: us", r["us"]["image"]
        elif (r["codebook"], r["layout"]) == ("e4m3", "rows"):
            yield f"{r['k_in']} -> {r['n']}, K = {r['k']}, {r['m']} rows, {r['dtype']}: us", r["us"]["chosen"]


def speeds_of(name, report):
    """{SPEED: value} of a report. The unit at the end of a name says whether more is better."""
    if name.startswith("ops"):
        return dict(op_speeds(report))
    kinds = {"peer_sparse_mla": sparse_mla_speeds, "peer_xattn": xattn_speeds, "peer_kbit": kbit_speeds,
             "peer_kbit_moe": kbit_speeds, "peer_exchange": exchange_speeds, "ranks_exchange": exchange_speeds}
    if name.startswith(("micro_", "peer_")) and name not in kinds:
        return {}  # micro-benchmarks decide designs, and a peer alone has no speed of ours
    return dict(kinds.get(name, step_speeds)(report))


def measured_model(report):
    """Which model a report of whole steps measured; None for kernels. Of a rank that runs alone also which."""
    keys = ("model", "experts", "dense", "layers", "numerics", *(["shard"] if report.get("shard") else []))
    return ", ".join(str(report[key]) for key in keys) if "model" in report else None


def machine_of(report):
    """The GPU, or how many of it: a rank that runs alone is on one."""
    ranks = 1 if report.get("shard") else report.get("ranks", 1)
    return report["device"] if ranks == 1 else f"{ranks}x {report['device']}"


def share(name, value, committed):
    """The speed relative to the committed one."""
    rate = name.endswith(("tokens/s", "TFLOPS"))
    return value / committed if rate else committed / value


def compare(committed, reports, least):
    """(lines about speeds that do not hold, number of those that hold, reasons for what was not compared)."""
    bad, good, skipped = [], 0, []
    for name, wanted in committed.items():
        report = reports.get(name)
        if report is None:
            skipped.append(f"{name}: the run has no such report")
            continue
        if wanted.get("of") != measured_model(report):
            skipped.append(f"{name}: measured {measured_model(report)}, committed is {wanted.get('of')}")
            continue
        found = speeds_of(name, report)
        for speed, value in wanted.items():
            if speed == "of":
                continue
            if speed not in found:
                bad.append(f"{name}: {speed} was not measured")
            elif share(speed, found[speed], value) < least:
                bad.append(f"{name}: {speed} {found[speed]:.4g}, {100 * share(speed, found[speed], value):.0f} % of {value:.4g}")
            else:
                good += 1
    return bad, good, skipped


def record(committed, reports):
    """The committed speeds with those of the run. Ops keep their rows, because most shapes are not worth a minimum."""
    recorded = dict(committed)
    for name, report in reports.items():
        speeds = speeds_of(name, report)
        if name.startswith("ops"):
            speeds = {speed: value for speed, value in speeds.items() if speed in committed.get(name, {})}
        elif name not in committed and not name.startswith("peer_"):
            continue
        of = measured_model(report)
        recorded[name] = {**({"of": of} if of else {}), **{speed: float(f"{value:.4g}") for speed, value in speeds.items()}}
    return recorded


def read_reports(folder):
    """{name: report} of the JSON files that have a device and results."""
    reports = {}
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        try:
            report = json.loads(path.read_text())
        except ValueError:
            continue  # of a program that failed; that step counted it
        if isinstance(report, dict) and "device" in report and "results" in report:
            reports[path.stem] = report
    return reports


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="folder of a run, or bench/results/gpu-*")
    parser.add_argument("--record", action="store_true", help="write the speeds into the committed file instead")
    parser.add_argument("--minimums", default=MINIMUMS, type=pathlib.Path, help="the committed file")
    options = parser.parse_args(argv)
    minimums, reports = json.loads(options.minimums.read_text()), read_reports(options.folder)
    devices = {report["device"] for report in reports.values()}
    if len(devices) != 1:
        print(f"{options.folder}: reports of {len(devices)} GPUs, want those of one")
        return 77
    machines = {}
    for name, report in reports.items():
        machines.setdefault(machine_of(report), {})[name] = report
    if options.record:
        for machine, of_machine in machines.items():
            minimums[machine] = record(minimums.get(machine, {}), of_machine)
        options.minimums.write_text(json.dumps(minimums, indent=1) + "\n")
        return 0
    bad, good, skipped = [], 0, []
    for machine, of_machine in machines.items():
        slow, held, reasons = compare(minimums.get(machine, {}), of_machine, minimums["least_share"])
        bad, good, skipped = bad + slow, good + held, skipped + reasons
    for line in skipped:
        print(f"skipped: {line}")
    for line in bad:
        print(f"slow: {line}")
    if good + len(bad) == 0:
        print(f"no speed of {', '.join(machines)} to compare with")
        return 77
    print(f"{good} speeds hold, {len(bad)} do not: {100 * minimums['least_share']:.0f} % of bench/results/minimums.json")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
