"""Trains the MTP block of the exported demo model, whose own weights stay as they are.

    python3 train_mtp.py --model ..            # that is how the bundled block was made

A draft is accepted when the main model would draw the same token, so the block learns the main
model's distribution of the token after the next, and not the text. The main model runs once over
the corpus, in official numerics, and its streams are kept.

    row t         X_t and token t + 1       ->  p_main at t + 1
    chained row   X1_{t-1} and token t + 1  ->  p_main at t + 1      the second of two drafts

Corpus and order follow from the seed: one device and one number of threads give one result.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import chat_data
import checkpoint
import data
import optim
from model import Model
from mtp import Mtp
from numerics import OFFICIAL, Mode

PLAIN, QUANT = (Mode(torch.float32, quant=quant, exact=False) for quant in (False, True))
CHATS = 0.3           # share of the documents that are conversations
HELD_OUT = 4          # documents
TOGETHER = 8          # documents whose streams are computed at once
CHAINED = 0.25        # weight of the chained rows' loss, and share of the steps that have them, the last ones
QUANTIZED = 0.4       # share of the steps, the last ones
MUON = 4              # its rate over that of AdamW


@torch.no_grad()
def streams_of(main: Model, ids: Tensor, mode: Mode = OFFICIAL) -> Tensor:
    """ids [B,T] -> [B,T,M,D] in the mode's dtype, after the last layer."""
    e = F.embedding(ids, main.embed.stored(mode)).to(mode.dtype)
    streams = e[:, :, None].expand(-1, -1, main.c.M, -1)
    for layer in main.layers:
        streams = layer(streams, ids, mode, True)[0]
    return streams


class Corpus:
    """Documents of `size` tokens, with the main model's streams at each."""

    def __init__(self, main: Model, tokenizer, name: str, count: int, size: int, device: str):
        ids, weights = chat_data.batch(tokenizer, name, count, size, CHATS)
        self.ids = torch.from_numpy(ids).long().to(device)
        self.weights = torch.from_numpy(weights).float().clamp(
            data.FACT_WEIGHT, data.STORY_WEIGHT).to(device)
        self.streams = torch.cat([streams_of(main, some) for some in self.ids.split(TOGETHER)])

    def batch(self, rows: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """ids, loss weights, streams; the last two tokens predict nothing."""
        return self.ids[rows], self.weights[rows], self.streams[rows]


def following(ids: Tensor) -> Tensor:
    return F.pad(ids[:, 1:], (0, 1))


def chained(streams: Tensor) -> Tensor:
    """The block's output at t - 1, where row t takes it; nothing comes before row 0."""
    return F.pad(streams[:, :-1], (0, 0, 0, 0, 1, 0))


def divergence(logits: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean of KL(p_main at t + 1 || q at t), t < T - 2; the token at t + 2 has the weight."""
    kl = F.kl_div(logits[:, :-2].log_softmax(-1), wanted[:, 1:-1].log_softmax(-1),
                  log_target=True, reduction="none").sum(-1)
    w = weights[:, 2:]
    return (w * kl).sum() / w.sum()


@torch.no_grad()
def acceptance(block: Mtp, main: Model, corpus: Corpus) -> dict[str, float]:
    """Shares of first and second drafts that hold where the text is an answer or a story: both
    greedy, and both drawn with one random number in ascending order of the ids."""
    generator = torch.Generator().manual_seed(5)
    held = {name: 0.0 for name in ("greedy_1", "greedy_2", "drawn_1", "drawn_2")}
    total = 0.0
    for row in range(len(corpus.ids)):
        ids, weights, streams = corpus.batch([row])
        wanted = main.logits(streams, OFFICIAL)[:, 1:-1]
        first, out, _ = block(main, streams, following(ids), QUANT)
        second = block(main, chained(out), following(ids), QUANT)[0]
        counted = weights[:, 2:] >= data.STORY_WEIGHT
        u = torch.rand(wanted.shape[:2] + (1,), generator=generator).to(ids.device)
        for kind, pick in (("greedy", lambda z: z.argmax(-1)),
                           ("drawn", lambda z, u=u: (z.softmax(-1).cumsum(-1) < u).sum(-1))):
            right = pick(wanted)
            for n, logits in ((1, first), (2, second)):
                held[f"{kind}_{n}"] += ((pick(logits[:, :-2]) == right) & counted).sum().item()
        total += counted.sum().item()
    return {name: round(count / total, 4) for name, count in held.items()}


class Trainer:
    def __init__(self, args: argparse.Namespace):
        self.args, self.start = args, time.time()
        self.main = checkpoint.load(args.model).requires_grad_(False).to(args.device)
        tokenizer = data.load_tokenizer(args.model)

        def corpus(name: str, count: int) -> Corpus:
            return Corpus(self.main, tokenizer, name, count, args.size, args.device)

        self.held_out = corpus("heldout-mtp", HELD_OUT)
        self.corpus = corpus(f"mtp-{args.seed}", args.documents)
        self.block = Mtp(self.main.c)
        self.block.start_from(self.main)
        self.block.to(args.device)
        self.optimizers = optim.build(self.block, args.lr, 0.05)

    def log(self, **values) -> None:
        print(json.dumps({"s": round(time.time() - self.start), "cpu": round(time.process_time()), **values}), flush=True)

    def run(self) -> None:
        args, order, rows = self.args, random.Random(self.args.seed), []
        for step in range(args.steps):
            left = 1 - max(step / args.steps, (time.time() - self.start) / args.seconds)
            if left <= 0:
                break
            if len(rows) < args.batch:
                rows = order.sample(range(args.documents), args.documents)
            loss, total = self.train_step([rows.pop() for _ in range(args.batch)], step, left)
            if step % 10 == 0:
                self.log(step=step, kl=round(loss, 4), total=round(total, 4))
            if step % 100 == 99 and step + 1 < args.steps:
                self.log(step=step, kl=round(loss, 4), **acceptance(self.block, self.main, self.held_out))
                checkpoint.save_mtp(self.block, args.out)
        self.log(step=step, kl=round(loss, 4), **acceptance(self.block, self.main, self.held_out))
        checkpoint.save_mtp(self.block, args.out)

    def train_step(self, rows: list[int], step: int, left: float) -> tuple[float, float]:
        ids, weights, streams = self.corpus.batch(rows)
        mode = QUANT if left <= QUANTIZED else PLAIN
        wanted = self.main.logits(streams, OFFICIAL)
        logits, out, load = self.block(self.main, streams, following(ids), mode)
        total = loss = divergence(logits, wanted, weights)
        if left <= CHAINED:
            logits = self.block(self.main, chained(out), following(ids), mode)[0]
            total = loss + CHAINED * divergence(logits, wanted, weights)
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.block.parameters(), 1.0)
        lr = self.args.lr * min(1, (step + 1) / 20) * min(1, 2.04 * left + 0.02)
        for optimizer, factor in zip(self.optimizers, (MUON, 1)):
            for group in optimizer.param_groups:
                group["lr"] = factor * lr
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            self.block.ffn.gate.bias += 0.002 * min(1, 2 * left) * torch.sign(load.mean() - load)
        return loss.item(), total.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="exported folder")
    parser.add_argument("--out", type=Path, help="folder of model.safetensors that gets the block; default: --model")
    parser.add_argument("--documents", type=int, default=48)
    parser.add_argument("--size", type=int, default=512, help="tokens of a document, a multiple of 128")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=math.inf,
                        help="limit of the wall time, for which the rates then decay")
    parser.add_argument("--batch", type=int, default=1, help="documents of a step")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    args = parser.parse_args()
    args.out = args.out or args.model
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    Trainer(args).run()


if __name__ == "__main__":
    main()
