"""Damaged small files of a user: recipes, codebooks, importance matrices, templates of needles, prompts, lists of ids.

Each starts from a good one; words, lines and bytes are changed.
"""

import json
import struct

from folders import STRANGE, change_json, json_text
from outcome import Run

WORDS = ["experts", "dense", "attn", "w1", "gate", "head", "embed", "0-2", "3", "5-1", "0-99999999999", "k2", "k3", "k9",
         "k3-nf", "k4-@", "k3-@book", "keep", "fp8", "bf16", "#", ",", "*", "", "\x1b[2J", "\u202e", "x" * 3000, "\xff", "-1",
         "nan", "1e400", "0.5", "99999999999999999999", "'", '"', "\\", "..", "layers.1.attn.wkv", "\0"]


def words(rng, good):
    """Text with words put in, left out, doubled, joined."""
    tokens = good.split(" ")
    for _ in range(rng.choice([0, 1, 2, 5, 50])):
        at = rng.randrange(len(tokens))
        tokens[at:at + rng.choice([0, 1])] = [rng.choice(WORDS)] * rng.choice([0, 1, 1, 2, 300])
        tokens = tokens or ["x"]
    return rng.choice([" ", " ", "\n", "\t"]).join(tokens).encode("utf-8", "surrogatepass")


def damaged(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice([0, 0, 1, 5])):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[:rng.randrange(len(data) + 1)] if rng.random() < 0.2 else data)


def recipe(rng, place, path):
    path.write_bytes(damaged(rng, words(rng, "experts k3\nattn 0-2 k4\nembed bf16\nexperts.down 1,3 k2-nf\nhead keep")))
    yield Run(["plan", place.demo, "--recipe", path] + rng.choice([[], ["--json"]]))
    if rng.random() < 0.5:
        yield Run(["quantize", place.demo, "--recipe", path, "-o", place.folder / "out"])


def codebook(rng, place, path):
    numbers = [rng.choice(["-1", "-0.5", "0", "0.25", "1", "1e-40", "1e38", "nan", "inf", "", "x", "\x1b[2J"])
               for _ in range(rng.choice([4, 8, 8, 16, 9]))]
    good = ["-1", "-0.6", "-0.3", "-0.1", "0.1", "0.3", "0.6", "1"]
    path.write_bytes(damaged(rng, " ".join(rng.choice([numbers, good])).encode()))
    yield Run(["quantize", place.demo, "--experts", f"k3-@{path}", "-o", place.folder / "out"])


def imatrix(rng, place, path):
    header = {"layers.1.attn.wkv": {"dtype": "F32", "shape": [256], "data_offsets": [0, 1024]},
              "layers.1.ffn.experts.0.w1": {"dtype": "F32", "shape": [256], "data_offsets": [1024, 2048]}}
    if rng.random() < 0.6:
        change_json(rng, header)
    value = rng.choice([1.0, 0.0, -1.0, float("nan"), float("inf"), 1e-42, 3e38])
    values = [rng.random() if rng.random() < 0.99 else value for _ in range(512)]
    text = json_text(header)
    path.write_bytes(damaged(rng, struct.pack("<Q", len(text)) + text + struct.pack("<512f", *values)))
    yield Run(["quantize", place.demo, "--experts", "k2", "--dense", "k4", "--imatrix", path, "-o", place.folder / "out"])


def needle(rng, place, path):
    value = json.loads((place.demo / "needle.json").read_text())
    for _ in range(rng.choice([1, 1, 3])):
        change_json(rng, value)
    path.write_bytes(damaged(rng, json_text(value)))
    yield Run(["eval", "needle", place.demo, "--template", path, "--distances", "100", "--prompts", "2"])


def json_lines(rng, place, path):
    lines = []
    for _ in range(rng.choice([1, 3, 8])):
        value = {"prompt": "Once upon a time", "max_tokens": 2, "seed": 5}
        if rng.random() < 0.8:
            value[rng.choice(["prompt", "max_tokens", "seed", "\x1b[2J", "other"])] = rng.choice(STRANGE)
        lines.append(json_text(rng.choice([value, value, "Once", rng.choice(STRANGE)])))
    path.write_bytes(damaged(rng, rng.choice([b"\n", b"\n\n", b"\r\n"]).join(lines)))
    yield Run(["run", place.demo, "--jsonl", path, "-n", "2", "--quiet"], shows_model_text=True)


def prompt(rng, place, path):
    pieces = [b"Once upon", b" ", b"\xff\xfe", b"\0", "\u0301".encode(), "<｜User｜>".encode(), b"a", b"\n", b"\xf0\x9f\x98\x80"]
    data = b"".join(rng.choice(pieces) * rng.choice([1, 1, 1, 40, 3000]) for _ in range(rng.randint(1, 8)))
    path.write_bytes(data)
    backwards = place.folder / "ids"

    def keep(done):
        backwards.write_bytes(done.out)
        return ""

    def same(done):
        return "" if done.code or done.out == data else "the ids are not those of the text"
    yield Run(["tokenize", place.demo, "-f", path], judge=keep)
    yield Run(["detokenize", place.demo, "--ids", f"@{backwards}"], judge=same, shows_model_text=True)
    yield Run(["run", place.demo, "-f", path, "-n", "1", "--context", "4000", "--quiet"], shows_model_text=True)


def ids(rng, place, path):
    path.write_bytes(damaged(rng, words(rng, " ".join(str(rng.randrange(1600)) for _ in range(20)))))
    yield Run(["eval", "ppl", place.demo, "--ids", f"@{path}"] + rng.choice([[], ["--json"]]))
    yield Run(["detokenize", place.demo, "--ids", "@-", "--json"], stdin=path.read_bytes(), shows_model_text=True)


def chat_requests(rng, place, path):
    value = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"},
                          {"role": "user", "content": [{"type": "text", "text": "<｜User｜>"}]}],
             "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "thinking": True}
    for _ in range(rng.choice([1, 2, 4])):
        change_json(rng, value)
    line = damaged(rng, json_text(value))
    yield Run(["inspect", rng.choice(["prompt", "completion"]), place.demo], stdin=line + b"\n" + line)


KINDS = [recipe, codebook, imatrix, needle, json_lines, prompt, ids, chat_requests]


def case(rng, place):
    kind = rng.choice(KINDS)
    return kind.__name__, kind(rng, place, place.folder / "input")
