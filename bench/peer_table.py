"""What one run of bench/peer_sparse_mla.py says about a case: our time beside the peer's, which was measured in the
same run or else stands in bench/peer/sparse_mla.json, and beside our targets. No torch here."""

import json
import pathlib

TABLE = pathlib.Path(__file__).resolve().parent / "peer/sparse_mla.json"
VALUES = 512  # of a row


def load(path=TABLE):
    """The table: source, targets and cases (name, sizes, unit, peer by card, minimum, aim)."""
    return json.loads(pathlib.Path(path).read_text())


def rows_of_a_query(case):
    return case["topk"] if "topk" in case else sum(topk for topk, _ in case["lists"])


def flops(case):
    """Of both products; every id of these cases is valid."""
    queries = case.get("b", 1) * case["s_q"]
    return 2 * queries * case["h"] * rows_of_a_query(case) * (case["d"] + VALUES)


def converted(case, value):
    """us of a number in the case's unit, and the other way round: both are their own inverse, or None."""
    if value is None or case["unit"] == "us":
        return value
    return flops(case) / value / 1e6


def card_of(device):
    """The card that the table may have numbers of: "NVIDIA H100 80GB HBM3" is "H100"."""
    return next((card for card in ("H100", "H200") if card in device.split()), None)


def compare(case, device, ours_us, peer_us=None):
    """A result of the report. peer says where the peer's number comes from: measured, table, or None."""
    source = "measured"
    if peer_us is None:
        peer_us = converted(case, case["peer"].get(card_of(device)))
        source = None if peer_us is None else "table"
    return {"case": case["name"], "unit": case["unit"], "ours_us": ours_us, "ours": converted(case, ours_us),
            "peer": source, "peer_us": peer_us, "theirs": converted(case, peer_us),
            "ratio": None if peer_us is None else peer_us / ours_us, "minimum": case.get("minimum"),
            "aim": case.get("aim"), "note": case.get("note")}


def number(value, unit):
    return f"{value:.0f} TFLOPS" if unit == "TFLOPS" else f"{value:.1f} us"


def line(result):
    """A result for people."""
    unit = result["unit"]
    text = f"{result['case']}: {number(result['ours'], unit)}"
    if result["peer"] is not None:
        text += f", peer {number(result['theirs'], unit)} ({result['peer']}), ratio {result['ratio']:.2f}"
    if result["minimum"] is not None:
        text += f", wanted {number(result['minimum'], unit)}, aim {number(result['aim'], unit)}"
    return text
