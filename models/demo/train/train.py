"""Trains the demo model in four phases: short texts, long texts, top-k selection, conversations.

Phase 3 continues from the weights of phase 2 or from an exported folder; its batches are a mixture
of the corpus of the other phases and of the conversations of chat_data.py.

Phase 0 should stay short: two runs with 187 and 1182 steps of it settled on a poor recall mechanism
(81 to 90 % of the answer tokens correct in phase 1), the run with 145 steps reached 99.9 %.
"""

import argparse
import json
import math
import multiprocessing as mp
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import chat_data
import checkpoint
import data
import optim
from config import DEMO, Config
from model import Model
from numerics import OFFICIAL, TRAIN, TRAIN_QUANT, Mode

COMPILED = 10  # steps after which every graph is compiled
DISTANCES = (64, 256, 512, 1000, 2000, 3000, 3900)


@dataclass(frozen=True)
class Phase:
    T: int
    steps: int
    mode: Mode
    sparse: bool  # real top-k selection
    chats: float = 0.0  # share of documents that are conversations


PHASES = (
    Phase(512, 145, TRAIN, sparse=False),
    Phase(4096, 530, TRAIN_QUANT, sparse=False),
    Phase(4096, 3962, TRAIN_QUANT, sparse=True),
    Phase(4096, 2600, TRAIN_QUANT, sparse=True, chats=0.6),
)


def feed(tokenizer_folder: Path, seed: int, worker: int, tokens: int, phase, queue) -> None:
    """Worker process: endless training batches of the current phase (shared value: its index)."""
    tokenizer = data.load_tokenizer(tokenizer_folder)
    n = 0
    while True:
        index = phase.value
        size, share = PHASES[index].T, PHASES[index].chats
        ids, weights = chat_data.batch(tokenizer, f"train-{seed}-{worker}-{n}", tokens // size,
                                       size + 1, share)
        queue.put((index, ids, weights))
        n += 1


class Feeder:
    def __init__(self, args: argparse.Namespace):
        context = mp.get_context("spawn")
        self.phase = context.Value("i", args.phases[0])
        self.queue = context.Queue(maxsize=200)
        self.workers = [
            context.Process(target=feed, daemon=True, args=(
                args.tokenizer, args.seed, w, args.tokens, self.phase, self.queue))
            for w in range(args.workers)]
        for worker in self.workers:
            worker.start()

    def next(self, phase: Phase, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        self.phase.value = PHASES.index(phase)
        while True:
            index, ids, weights = self.queue.get()
            if PHASES[index] is phase:  # batches of the previous phase are dropped
                return (torch.from_numpy(ids).to(device, torch.long),
                        torch.from_numpy(weights).to(device, torch.float32) / 4)


def losses(model, ids, weights, mode: Mode, sparse: bool):
    """Weighted cross entropy, indexer loss, answer accuracy, loads."""
    logits, index_loss, loads = model(ids[:, :-1], mode, sparse)
    target, w = ids[:, 1:], weights[:, 1:]
    ce = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view_as(target)
    is_answer = w == data.ANSWER_WEIGHT / 4
    right = ((logits.argmax(-1) == target) & is_answer).sum() / is_answer.sum()
    return (w * ce).sum() / w.sum(), (w * index_loss).sum() / w.sum(), right, loads


@torch.no_grad()
def balance(model: Model, loads: torch.Tensor, rate: float) -> None:
    """The bias of an expert increases while it is selected less often than the mean."""
    for layer, load in zip(model.layers, loads):
        if not layer.ffn.gate.hashed:
            layer.ffn.gate.bias += rate * torch.sign(load.mean() - load)


@torch.no_grad()
def recall(model: Model, tokenizer, count: int, device: str, mode: Mode = OFFICIAL,
           distances=DISTANCES) -> dict[int, float]:
    """Share of probes whose complete answer is the greedy choice, by distance."""
    model.eval()
    result = {}
    for distance in distances:
        hits = 0
        for start in range(0, count, 8):
            probes = [data.probe(tokenizer, f"heldout-probe-{distance}-{i}", distance)
                      for i in range(start, min(start + 8, count))]
            longest = max(len(p) + len(a) for p, a in probes)
            ids = torch.full((len(probes), -(-longest // 128) * 128), 2)
            for row, (prompt, answer) in zip(ids, probes):
                row[:len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            guess = model(ids.to(device), mode)[0].argmax(-1).cpu()
            for row, (prompt, answer) in zip(guess, probes):
                n = len(prompt)
                hits += row[n - 1:n - 1 + len(answer)].tolist() == answer
        result[distance] = round(hits / count, 3)
    model.train()
    return result


@torch.no_grad()
def perplexity(model: Model, tokenizer, count: int, T: int, device: str,
               mode: Mode = OFFICIAL) -> float:
    model.eval()
    total = 0.0
    for i in range(count):
        ids, _ = data.batch(tokenizer, f"heldout-{i}", 4, T + 1)
        ids = torch.from_numpy(ids).to(device, torch.long)
        logits = model(ids[:, :-1], mode)[0]
        total += F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item()
    model.train()
    return float(np.exp(total / count))


def load_weights(path: Path, device: str) -> dict[str, torch.Tensor]:
    if path.is_dir():
        return checkpoint.load(path).state_dict()
    return torch.load(path, map_location=device)


def settings() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    torch._dynamo.config.cache_size_limit = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="checkpoint file")
    parser.add_argument("--resume", type=Path, help="checkpoint file or exported model folder")
    parser.add_argument("--seconds", type=float, default=math.inf,
                        help="limit of the wall time: with --cool the rates decay in time for it")
    parser.add_argument("--tokens", type=int, default=65536, help="tokens per step")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--decay", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=13)
    parser.add_argument("--phases", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cool", action="store_true",
                        help="decay the learning rates over the second half")
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    settings()
    feeder = Feeder(args)
    tokenizer = data.load_tokenizer(args.tokenizer)
    model = Model(Config.of(DEMO)).to(args.device)
    if args.resume:
        model.load_state_dict(load_weights(args.resume, args.device), strict=True)
    if args.device == "cuda":
        for layer in model.layers:
            layer.compile(dynamic=False)
    optimizers = optim.build(model, args.lr, args.decay)
    Trainer(args, model, tokenizer, feeder, optimizers).run()


class Trainer:
    def __init__(self, args, model, tokenizer, feeder, optimizers):
        self.args, self.model, self.tokenizer = args, model, tokenizer
        self.feeder, self.optimizers = feeder, optimizers
        self.step, self.tokens = 0, 0
        self.started, self.compiled = time.time(), 0.0

    def log(self, **values) -> None:
        print(json.dumps({"s": round(time.time() - self.started), "step": self.step,
                          "tokens": self.tokens, **values}), flush=True)

    def run(self) -> None:
        phases = [PHASES[i] for i in self.args.phases]
        total = sum(p.steps for p in phases)
        for phase in phases:
            self.log(T=phase.T, quant=phase.mode.quant, sparse=phase.sparse)
            self.run_phase(phase, total)
            torch.save(self.model.state_dict(), self.args.out)
            near = [d for d in DISTANCES if d < 2 * phase.T]
            if self.args.device == "cuda":
                self.log(memory_gib=round(torch.cuda.max_memory_allocated() / 2**30, 1))
            self.log(recall=recall(self.model, self.tokenizer, 16, self.args.device,
                                   distances=near),
                     heldout=perplexity(self.model, self.tokenizer, 2, phase.T, self.args.device))

    def left(self, total: int) -> float:
        """Share of the run that remains, by steps or by time, whichever is less."""
        now = time.time() - self.started
        if self.step <= COMPILED:
            self.compiled = now
        if now >= self.args.seconds:
            return 0.0
        spent = (now - self.compiled) / (self.args.seconds - self.compiled)
        return 1 - max(self.step / total, spent)

    def run_phase(self, phase: Phase, total: int) -> None:
        for _ in range(phase.steps):
            left = self.left(total)
            if left <= 0:
                break
            left = left if self.args.cool else 1.0
            lr = self.args.lr * min(1, (self.step + 1) / 100) * min(1, 2.04 * left + 0.02)
            loss, index_loss, right, loads = self.train_step(phase, lr)
            balance(self.model, loads, 0.002 * min(1, 2 * left))
            if self.step % self.args.log_every == 0:
                self.log(loss=round(loss.item(), 4), index=round(index_loss.item(), 4),
                         answers=round(right.item(), 3), lr=round(lr, 5),
                         load=round((loads.amax(-1) / loads.mean(-1)).max().item(), 2))

    def train_step(self, phase: Phase, lr: float):
        ids, weights = self.feeder.next(phase, self.args.device)
        loss, index_loss, right, loads = losses(self.model, ids, weights, phase.mode, phase.sparse)
        (loss + index_loss).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += ids[:, 1:].numel()
        return loss.detach(), index_loss.detach(), right, loads


if __name__ == "__main__":
    main()
