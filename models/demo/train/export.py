"""Writes a trained checkpoint as a model folder in the official format."""

import argparse
from pathlib import Path

import torch

import checkpoint
from config import DEMO, Config
from model import Model


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
    checkpoint.check_size(args.out)


if __name__ == "__main__":
    main()
