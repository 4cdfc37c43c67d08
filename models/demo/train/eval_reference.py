"""Measures an exported model folder with model.py and writes the golden files of tests/golden/demo.

The weights are those of model.safetensors; "official" is the official numerics (quantized KV,
activations and indexer, bf16 rounding), "float32" uses the same weights without any rounding.
"""

import argparse
import json
from pathlib import Path

import torch

import checkpoint
import data
import train
from numerics import FLOAT, OFFICIAL

PROMPTS = {64: 20, 256: 20, 512: 20, 1000: 20, 2000: 20, 3000: 100, 3900: 20}
RECALL_COUNT = 200  # probes per distance for the measured accuracy
PREFIXES = ("<｜begin▁of▁sentence｜><｜User｜>Tell me a story about Mira and a lantern."
            "<｜Assistant｜></think>",
            "<｜begin▁of▁sentence｜>Once there was a boy named Tom who")


@torch.no_grad()
def next_logits(model, rows: list[list[int]], device: str, mode) -> torch.Tensor:
    """Logits [B,V] after the last token of each row."""
    width = -(-max(map(len, rows)) // 128) * 128
    ids = torch.full((len(rows), width), 2)
    for line, row in zip(ids, rows):
        line[:len(row)] = torch.tensor(row)
    logits = model(ids.to(device), mode)[0]
    return logits[torch.arange(len(rows)), torch.tensor([len(r) - 1 for r in rows])].cpu()


def greedy(model, prompts: list[list[int]], steps: int, device: str, mode=OFFICIAL):
    """`steps` tokens after every prompt, recomputing the whole sequence for each."""
    rows = [list(p) for p in prompts]
    for _ in range(steps):
        for row, token in zip(rows, next_logits(model, rows, device, mode).argmax(-1).tolist()):
            row.append(token)
    return [row[len(p):] for row, p in zip(rows, prompts)]


def golden_recall(model, tokenizer, device: str) -> list[dict]:
    cases = []
    for distance, count in PROMPTS.items():
        for start in range(0, count, 10):
            probes = [data.probe(tokenizer, f"golden-{distance}-{i}", distance)
                      for i in range(start, start + 10)]
            longest = max(len(answer) for _, answer in probes)
            replies = greedy(model, [p for p, _ in probes], longest, device)
            cases += [{"distance": distance, "prompt": p, "answer": a, "torch": r[:len(a)]}
                      for (p, a), r in zip(probes, replies)]
    return cases


@torch.no_grad()
def golden_logits(model, tokenizer, device: str) -> dict:
    """300 tokens of a held-out text; the top 20 logits of the last 8 positions in both modes."""
    ids = data.document(tokenizer, "golden-logits", 300)[0].tolist()
    padded = torch.tensor([ids + [2] * (-len(ids) % 128)], device=device)
    result = {"ids": ids, "positions": list(range(292, 300))}
    for name, mode in (("float32", FLOAT), ("official", OFFICIAL)):
        top = model(padded, mode)[0][0, 292:300].topk(20)
        result[name] = {"ids": top.indices.tolist(),
                        "logits": [[round(v, 5) for v in row] for row in top.values.tolist()]}
    return result


def tell(model, tokenizer, prefix: str, device: str) -> str:
    ids = tokenizer.encode(prefix).ids
    reply: list[int] = []
    while len(reply) < 160 and data.EOS not in reply:
        reply += greedy(model, [ids + reply], 1, device)[0]
    return tokenizer.decode(ids + reply, skip_special_tokens=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="exported folder")
    parser.add_argument("--golden", type=Path, required=True, help="folder for the golden files")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    torch.backends.cuda.matmul.allow_tf32 = False
    model = checkpoint.load(args.model).to(args.device)
    tokenizer = data.load_tokenizer(args.model)
    args.golden.mkdir(parents=True, exist_ok=True)

    report = {
        "recall_official": train.recall(model, tokenizer, RECALL_COUNT, args.device),
        "recall_float32_3000": train.recall(model, tokenizer, RECALL_COUNT, args.device, FLOAT,
                                            (3000,)),
        "perplexity_4096_official": train.perplexity(model, tokenizer, 8, 4096, args.device),
        "perplexity_4096_float32": train.perplexity(model, tokenizer, 8, 4096, args.device, FLOAT),
    }
    cases = golden_recall(model, tokenizer, args.device)
    right = {d: [c["torch"] == c["answer"] for c in cases if c["distance"] == d] for d in PROMPTS}
    report["recall_golden"] = {d: round(sum(r) / len(r), 3) for d, r in right.items()}
    report["samples"] = [tell(model, tokenizer, p, args.device) for p in PREFIXES]
    dump = {"separators": (",", ":")}
    (args.golden / "recall.json").write_text(json.dumps(cases, **dump) + "\n")
    logits = golden_logits(model, tokenizer, args.device)
    (args.golden / "logits.json").write_text(json.dumps(logits, **dump) + "\n")
    (args.golden / "report.json").write_text(
        json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps(report, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
