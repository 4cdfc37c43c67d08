"""Compiles one layer of a training phase; several processes fill the compiler's cache together.

    export TORCHINDUCTOR_CACHE_DIR=$PWD/compiled
    for layer in 0 1 2; do python3 precompile.py --phase 3 --layer $layer & done; wait

Compiling takes minutes, mostly of one thread. The layers 0, 1 and 2 are one of each kind (window,
CSA, HCA); train.py then finds all of its graphs in the cache. Everything that a graph depends on is
as in train.py: shapes, strides, modes, settings.
"""

import argparse

import torch
import torch.nn.functional as F

import train
from config import DEMO, Config
from model import Model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--phase", type=int, required=True)
    parser.add_argument("--layer", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=65536, help="tokens per step")
    args = parser.parse_args()
    phase = train.PHASES[args.phase]
    train.settings()
    model = Model(Config.of(DEMO)).to("cuda")
    layer = model.layers[args.layer]
    layer.compile(dynamic=False)
    ids = torch.zeros(args.tokens // phase.T, phase.T + 1, dtype=torch.long, device="cuda")[:, :-1]
    e = F.embedding(ids, model.embed.stored(phase.mode)).to(phase.mode.dtype)
    streams = e[:, :, None].expand(-1, -1, model.c.M, -1)  # [B,T,M,D]
    if args.layer > 0:
        streams = streams.contiguous()
    out, index_loss, _ = layer(streams, ids, phase.mode, phase.sparse)
    (out.float().sum() + index_loss.sum()).backward()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
