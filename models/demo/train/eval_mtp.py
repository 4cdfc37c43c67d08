"""Writes tests/golden/demo/mtp.json: what the exported MTP block guesses, in float32.

The text is that of logits.json. At position p, the first draft has the streams of p and the token
at p + 1; the second has the first one's streams and the token at p + 2.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

import checkpoint
from numerics import FLOAT
from train_mtp import following, streams_of

TOP = 20  # logits that are kept


def best(logits: list[Tensor]) -> dict:
    top = torch.stack(logits).topk(TOP)
    return {"ids": top.indices.tolist(),
            "logits": [[round(v, 5) for v in row] for row in top.values.tolist()]}


@torch.no_grad()
def drafts(main, block, ids: list[int], positions: list[int]) -> dict:
    padded = torch.tensor([ids + [2] * (-len(ids) % 128)])
    streams = streams_of(main, padded, FLOAT)
    first, out, _ = block(main, streams, following(padded), FLOAT)
    second = []
    for p in positions:
        chain = streams.clone()
        chain[:, p + 1] = out[:, p]
        second.append(block(main, chain, following(padded), FLOAT)[0][0, p + 1])
    return {"positions": positions, "first": best([first[0, p] for p in positions]),
            "second": best(second)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="exported folder")
    parser.add_argument("--golden", type=Path, required=True, help="folder of the golden files")
    args = parser.parse_args()
    ids = json.loads((args.golden / "logits.json").read_text())["ids"]
    positions = [0, 1, 127, 128, 290, 293, 295, 297]
    result = drafts(checkpoint.load(args.model), checkpoint.load_mtp(args.model), ids, positions)
    (args.golden / "mtp.json").write_text(json.dumps(result, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
