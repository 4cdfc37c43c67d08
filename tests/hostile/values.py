"""One tensor filled with a value, whole or in one place: NaN, infinity, the largest numbers, zero, codes out of range.

A prompt of 780 tokens makes the indexer and the router choose. What is no number must be refused, with the tensor's name.
"""

import json
import math
import struct

from folders import Folder
from outcome import Run

F32 = [struct.pack("<f", value) for value in (math.nan, math.inf, -math.inf, 3e38, -3e38, 0.0, 1e-42)]
VALUES = {"F32": F32, "BF16": [b"\xc0\x7f", b"\x80\x7f", b"\x80\xff", b"\x7f\x7f", b"\0\0"],
          "F8_E4M3": [b"\x7f", b"\xff", b"\x7e", b"\0"], "F8_E8M0": [b"\xff", b"\xfe", b"\0"],
          "I64": [struct.pack("<q", value) for value in (-1, 8, 1 << 40, -(1 << 63), 0)],
          "I8": [b"\xff", b"\x77"], "U8": [b"\xff", b"\0", b"\x7f"], "I32": [b"\xff" * 4, b"\0" * 4]}
NO_NUMBER = {"F32": F32[:3], "BF16": VALUES["BF16"][:3], "F8_E4M3": VALUES["F8_E4M3"][:2],
             "F8_E8M0": VALUES["F8_E8M0"][:1], "I64": VALUES["I64"][:4]}


def case(rng, place):
    folder = Folder(rng.choice([place.demo, place.demo, place.k3]), place.folder / "model")
    data = bytearray(folder.read("model.safetensors"))
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    name = rng.choice([name for name in header if name != "__metadata__"])
    dtype, (begin, end) = header[name]["dtype"], header[name]["data_offsets"]
    value = rng.choice(VALUES[dtype])
    if rng.random() < 0.5:
        begin += rng.randrange((end - begin) // len(value)) * len(value)
        end = begin + len(value)
    data[8 + size + begin:8 + size + end] = value * ((end - begin) // len(value))
    folder.write("model.safetensors", bytes(data))
    no_number = value in NO_NUMBER.get(dtype, [])
    numerics = rng.choice(["official", "exact"])

    def judge(done):
        if not no_number:
            return ""
        if done.code == 0:
            return "accepts what is no number"
        return "" if name.encode() in done.err else "does not name the tensor"
    text = place.folder / "prompt"
    text.write_bytes(place.text.read_bytes()[:3600])
    what = f"{name} {dtype} {value.hex()} at {begin}, {(end - begin) // len(value)} times, {numerics}"
    return what, [Run(["run", folder.path, "-n", "3", "-f", text, "--temp", "0", "--quiet", "--numerics", numerics],
                      judge=judge, shows_model_text=True),
                  Run(["inspect", folder.path], judge=judge)]
