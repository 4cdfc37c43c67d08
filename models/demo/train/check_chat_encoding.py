"""Compares chat_encoding.py with `dsv4 inspect prompt` on random conversations of the corpus.

    python3 check_chat_encoding.py --dsv4 DSV4 --model .. --count 300

Every conversation is compared up to each of the assistant's replies: the text and the token ids of
the request's prompt are those that the training document holds before that reply.
"""

import argparse
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import chats
import data
from chat_encoding import EOS, THINK_END, Conversation, Message, pieces, request


def expected(c: Conversation, count: int) -> str:
    """The prompt of the first `count` messages: all of the text before the next reply."""
    cut = replace(c, messages=[*c.messages[:count], Message("assistant")])
    text = "".join(text for text, _ in pieces(cut))
    if c.thinking:
        return text.removesuffix(THINK_END + EOS)
    return text.removesuffix(EOS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dsv4", required=True, help="the program")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--count", type=int, default=300)
    args = parser.parse_args()
    tokenizer = data.load_tokenizer(args.model)
    wanted, bodies = [], []
    for i in range(args.count):
        rng = random.Random(f"encoding-{i}")
        c = chats.conversation(rng, rng.randint(1, 6), rng.random() < 0.7)
        for n, message in enumerate(c.messages):
            if message.role == "assistant":
                wanted.append(expected(c, n))
                bodies.append(json.dumps(request(c, n)))
    run = subprocess.run([args.dsv4, "inspect", "prompt", args.model], capture_output=True,
                         input="\n".join(bodies) + "\n", text=True)
    if run.returncode != 0:
        sys.exit(run.stderr)
    different = 0
    for want, body, line in zip(wanted, bodies, run.stdout.splitlines(), strict=True):
        got = json.loads(line)
        if got.get("prompt") != want or got["ids"] != tokenizer.encode(want).ids:
            different += 1
            print(f"differs: {body}\n  want {want!r}\n  got  {got!r}")
    print(f"{len(wanted)} prompts of {args.count} conversations, {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
