"""Writes a trained checkpoint as a model folder in the official format."""

import argparse
from pathlib import Path

import torch

import checkpoint
from config import DEMO, Config
from model import Model

LIMIT = 17.5 * 2**20  # with the MTP block


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, help="output of train.py; default: a random model")
    parser.add_argument("--out", type=Path, required=True, help="must already hold the tokenizer files")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Model(Config.of(DEMO))
    if args.weights:
        model.load_state_dict(torch.load(args.weights, map_location="cpu"))
    checkpoint.save(model, DEMO, args.out)
    size = sum(f.stat().st_size for f in args.out.iterdir())
    print(f"{args.out}: {size} bytes = {size / 2**20:.2f} MiB")
    assert size <= LIMIT, "larger than the bundled model may be"


if __name__ == "__main__":
    main()
