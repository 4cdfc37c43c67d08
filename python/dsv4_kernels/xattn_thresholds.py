"""Thresholds per layer and head, as `python -m dsv4_kernels.xattn_calibrate` writes them:

    {"format": "dsv4 xattn thresholds 1", "stride": 16, "block": 128, "layers": [[0.91, ..], null, ..], ..}

A layer is a list of one threshold per query head, or null: dense. Other members describe how the file was made.
"""

import dataclasses
import json
import math
import pathlib

FORMAT = "dsv4 xattn thresholds 1"


@dataclasses.dataclass(frozen=True)
class Thresholds:
    stride: int
    block: int
    layers: tuple  # of tuples of floats, or None: dense

    def arguments(self, layer):
        """Keyword arguments of xattn_prefill() for this layer."""
        if not 0 <= layer < len(self.layers):
            raise ValueError(f"layer {layer} of {len(self.layers)}")
        thresholds = self.layers[layer]
        return {"stride": self.stride, "block_size": self.block, "dense": thresholds is None,
                "threshold": 1.0 if thresholds is None else thresholds}


def _layer(number, row):
    if row is None:
        return None
    if not isinstance(row, list) or not row or not all(isinstance(t, (int, float)) and 0 <= t <= 1 for t in row):
        raise ValueError(f"layer {number}: want null or a list of numbers from 0 to 1")
    return tuple(float(t) for t in row)


def thresholds_of(path):
    """Reads a file of thresholds; ValueError with one line when it is none."""
    try:
        data = json.loads(pathlib.Path(path).read_text())
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"want an object with format '{FORMAT}'")
        stride, block = data["stride"], data["block"]
        if stride not in (4, 8, 16, 32, 64) or block not in (64, 128):
            raise ValueError(f"stride={stride} and block={block}")
        return Thresholds(stride, block, tuple(_layer(i, row) for i, row in enumerate(data["layers"])))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def write_thresholds(path, stride, block, layers, **notes):
    """Thresholds are rounded up: never fewer blocks."""
    data = {"format": FORMAT, "stride": stride, "block": block, **notes,
            "layers": [None if row is None else [min(math.ceil(float(t) * 1e6) / 1e6, 1.0) for t in row] for row in layers]}
    pathlib.Path(path).write_text(json.dumps(data, indent=1) + "\n")
