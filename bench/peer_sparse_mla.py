#!/usr/bin/env python3
"""Times dsv4_kernels and, where it is importable, FlashMLA (flash_mla) on the same tensors in the same run, case by
case of bench/peer/sparse_mla.json: CUDA graphs of 20 calls over different random indices, alternating between the
libraries, median of many replays. Without flash_mla the numbers of the table are used, and the report has "peer": "table".

    PYTHONPATH=build/python bench/peer_sparse_mla.py [--out FILE] [--filter TEXT]

Requires torch and a GPU. Exit status 1 when the two libraries disagree or no case ran; 77 without torch, a GPU or
dsv4_kernels, and 77 after the report when flash_mla was missing, so that a comparison with the table is called skipped.
"""

import argparse
import importlib
import json
import statistics
import sys

import peer_cases
import peer_table

PEER_HEADS = (64, 128)  # head counts that the peer supports: others are padded
MOST_DIFFERENCE = 0.02  # relative to the outputs: both round P, to 8 or 11 bits


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="the report, JSON; default: stdout")
    parser.add_argument("--filter", default="", help="only cases whose name contains this")
    parser.add_argument("--calls", type=int, default=20, help="calls per graph")
    parser.add_argument("--replays", type=int, default=21, help="replays of a graph, timed one by one")
    return parser.parse_args(argv)


def optional_module(name):
    """(module, None) or (None, reason)."""
    try:
        return importlib.import_module(name), None
    except ImportError as error:
        return None, f"{name}: {error}"


def capture(torch, call, calls):
    """A graph of `calls` calls, run once."""
    call(0)  # loads code, creates schedules
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    graph.replay()
    torch.cuda.synchronize()
    return graph


def time_alternating(torch, graphs, calls, replays):
    """Median us of a call in each graph."""
    times = [[] for _ in graphs]
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(replays):
        for graph, mine in zip(graphs, times):
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            mine.append(start.elapsed_time(end) * 1000 / calls)
    return [statistics.median(mine) for mine in times]


def difference(ours, theirs):
    """Relative difference of two outputs."""
    theirs = theirs[..., :ours.shape[-2], :].float()
    return ((ours.float() - theirs).norm() / theirs.norm()).item()


def measure(torch, pools, case, ours, peer, options):
    """One result of the report."""
    tensors, refusal = peer_cases.Case(torch, pools, case, options.calls), None
    calls = [tensors.caller(ours, case["h"])]
    graphs = [capture(torch, calls[0], options.calls)]
    if peer is not None:
        try:
            calls.append(tensors.caller(peer, min(h for h in PEER_HEADS if h >= case["h"])))
            graphs.append(capture(torch, calls[1], options.calls))
        except Exception as error:  # the peer rejects the case: use the table's number
            refusal = str(error)
    times = time_alternating(torch, graphs, options.calls, options.replays)
    result = peer_table.compare(case, torch.cuda.get_device_name(), *times)
    if refusal is not None:
        result["refusal"] = refusal
    elif peer is not None:
        result["difference"] = difference(*(call(0) for call in calls))
    return result


def main(argv):
    options = arguments(argv)
    torch, why = optional_module("torch")
    ours, ours_why = optional_module("dsv4_kernels")
    if torch is None or ours is None or not torch.cuda.is_available():
        print(f"peer_sparse_mla: {why or ours_why or 'no GPU'}")
        return 77
    peer, why = optional_module("flash_mla")
    table, pools = peer_table.load(), peer_cases.Pools(torch)
    report = {"device": torch.cuda.get_device_name(), "peer": "table" if peer is None else "flash_mla",
              "version": getattr(peer, "__version__", None), "why": why, "source": table["source"], "targets": table["targets"], "calls": options.calls,
              "replays": options.replays, "results": []}
    for case in table["cases"]:
        if options.filter not in case["name"]:
            continue
        report["results"].append(measure(torch, pools, case, ours, peer, options))
        print(peer_table.line(report["results"][-1]), file=sys.stderr)
    text = json.dumps(report, indent=1) + "\n"
    if options.out is None:
        sys.stdout.write(text)
    else:
        with open(options.out, "w") as file:
            file.write(text)
    apart = [r["case"] for r in report["results"] if r.get("difference", 0) > MOST_DIFFERENCE]
    for case in apart:
        print(f"peer_sparse_mla: the libraries disagree on {case}", file=sys.stderr)
    if apart or not report["results"]:
        return 1
    if peer is None:
        print(f"peer_sparse_mla: compared with the table only, {why}")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
