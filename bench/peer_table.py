"""Compares our time of a case of bench/peer_sparse_mla.py with the peer's, measured in the same run or else taken from
bench/peer/sparse_mla.json, and with our targets. Does not import torch."""

import json
import pathlib

TABLE = pathlib.Path(__file__).resolve().parent / "peer/sparse_mla.json"
VALUES = 512  # value dims of an entry


def load(path=TABLE):
    """The table: source, targets and cases (name, sizes, unit, peer by GPU, minimum, aim)."""
    return json.loads(pathlib.Path(path).read_text())


def indices_per_query(case):
    return case["topk"] if "topk" in case else sum(topk for topk, _ in case["lists"])


def flops(case):
    """Of QK and PV; every index of these cases is valid."""
    queries = case.get("b", 1) * case["s_q"]
    return 2 * queries * case["h"] * indices_per_query(case) * (case["d"] + VALUES)


def converted(case, value):
    """Converts between us and the case's unit; the conversion is its own inverse. None stays None."""
    if value is None or case["unit"] == "us":
        return value
    return flops(case) / value / 1e6


def gpu_model(device):
    """The GPU model as the table names it: "NVIDIA H100 80GB HBM3" is "H100"."""
    return next((model for model in ("H100", "H200") if model in device.split()), None)


def compare(case, device, ours_us, peer_us=None):
    """One result of the report. peer is the source of the peer's number: measured, table, or None."""
    source = "measured"
    if peer_us is None:
        peer_us = converted(case, case["peer"].get(gpu_model(device)))
        source = None if peer_us is None else "table"
    return {"case": case["name"], "unit": case["unit"], "ours_us": ours_us, "ours": converted(case, ours_us),
            "peer": source, "peer_us": peer_us, "theirs": converted(case, peer_us),
            "ratio": None if peer_us is None else peer_us / ours_us, "minimum": case.get("minimum"),
            "aim": case.get("aim"), "note": case.get("note")}


def number(value, unit):
    return f"{value:.0f} TFLOPS" if unit == "TFLOPS" else f"{value:.1f} us"


def line(result):
    """A result as readable text."""
    unit = result["unit"]
    text = f"{result['case']}: {number(result['ours'], unit)}"
    if result["peer"] is not None:
        text += f", peer {number(result['theirs'], unit)} ({result['peer']}), ratio {result['ratio']:.2f}"
    if result["minimum"] is not None:
        text += f", minimum {number(result['minimum'], unit)}, aim {number(result['aim'], unit)}"
    return text
