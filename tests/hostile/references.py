"""Damaged files of reference logits for `eval kld`: header, metadata and bytes changed, logits that are no numbers."""

import json
import struct

from folders import change_json, json_text
from outcome import Run


def case(rng, place):
    data = bytearray(place.reference.read_bytes())
    size = struct.unpack("<Q", data[:8])[0]
    kind = rng.choice(["header", "header", "metadata", "flip", "cut", "append", "logits", "ids", "replace"])
    what = kind
    if kind in ("header", "metadata"):
        header = json.loads(data[8:8 + size])
        what = kind + " " + change_json(rng, header if kind == "header" else header["__metadata__"])
        text = json_text(header)
        data = struct.pack("<Q", len(text)) + text + data[8 + size:]
    elif kind == "flip":
        for _ in range(rng.choice([1, 10, 1000])):
            data[rng.randrange(rng.choice([8, 8 + size, len(data)]))] = rng.randrange(256)
    elif kind == "cut":
        del data[rng.randrange(len(data)):]
    elif kind == "append":
        data += rng.randbytes(rng.choice([1, 4, 4000]))
    elif kind == "replace":
        data = rng.choice([b"", b"{}", bytes(8), rng.randbytes(3000), b"\xff" * 100])
    else:
        values = [float("nan"), float("inf"), -float("inf"), 3e38, -3e38]
        value = struct.pack("<f", rng.choice(values)) if kind == "logits" else struct.pack("<i", rng.choice([-1, 1536, 2**31 - 1]))
        # The ids come after the logits (dsv4/quality/reference_file.cc).
        at = 8 + size + 4 * rng.randrange(1000) if kind == "logits" else len(data) - 4 * rng.randint(1, 40)
        data[at:at + 4] = value
        what += " " + value.hex()
    path = place.folder / "reference"
    path.write_bytes(bytes(data))

    def judge(done):
        return "accepts what is no number" if kind == "logits" and value != struct.pack("<f", 3e38) \
            and value != struct.pack("<f", -3e38) and done.code == 0 else ""
    return what, [Run(["eval", "kld", place.demo, "--reference", path] + rng.choice([[], ["--json"]]), judge=judge)]
