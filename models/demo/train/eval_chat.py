"""Measures conversations and tool calls of the demo model through `dsv4 serve`, greedy.

    python3 eval_chat.py --dsv4 DSV4 --model .. --out results.jsonl

Every case is a conversation of the corpus with a seed that training never used. Its last exchange
is played through POST /v1/chat/completions: the engine encodes the request, runs the model and
parses its output. A reply is right if its calls are the expected ones, with equal names and
arguments, and if its content holds every value that had to be copied or, without such values, is
the expected text. It must come with reasoning if the conversation thinks, and without otherwise. A
case is right if all replies of its last exchange are. Results of tools come from the corpus.

The cases of all groups take turns, and every result is a line of the output file, so that a run which
is ended by Control-C or a slow machine has measured something too.
"""

import argparse
import json
import random
import re
import socket
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import chats
from chat_encoding import COLD, HOT, Conversation, Message, plain, request
from toolbox import TOYS, draw


@dataclass(frozen=True)
class Case:
    group: str
    index: int
    talk: Conversation
    start: int  # index of the user message that begins the last exchange


def tools_with(rng: random.Random, needed: tuple[str, ...], unseen: bool = False):
    """Declared tools that include the needed kinds; with `needed` empty, that lack a toy tool."""
    while True:
        tools = draw(rng, unseen)
        if all(kind in tools for kind in needed) and (needed or not all(k in tools for k in TOYS)):
            return tools


def no_fit(talk: chats.Talk) -> None:
    chats.errand(talk, talk.rng.choice([k for k in TOYS if k not in talk.tools]))


def remembered_name(talk: chats.Talk) -> None:
    if not talk.name:
        chats.introduction(talk)
    chats.what_name(talk)


def remembered_fact(talk: chats.Talk) -> None:
    if not talk.stated:
        chats.tell_fact(talk)
    chats.ask_fact(talk)


def case(group: str, index: int, skill: Callable[[chats.Talk], None], before: int,
         needed: tuple[str, ...] | None, unseen: bool = False) -> Case:
    """`needed` None: no tools at all."""
    rng = random.Random(f"heldout-chat-{group}-{index}")
    talk = chats.begin(rng, {} if needed is None else tools_with(rng, needed, unseen))
    talk.out.thinking, talk.out.most_effort = index % 2 == 1, False
    for _ in range(rng.randint(1, before) if before else 0):
        chats.exchange(talk)
    skill(talk)
    users = [i for i, m in enumerate(talk.out.messages) if m.role == "user"]
    return Case(group, index, talk.out, users[-1])


def cases(count: int) -> list[Case]:
    groups: list[tuple] = []
    for kind in TOYS:
        groups.append((f"{kind}, first message", partial(chats.errand, kind=kind), 0, (kind,)))
        groups.append((f"{kind}, in a conversation", partial(chats.errand, kind=kind), 4, (kind,)))
    groups += [
        ("two calls at once", chats.two_errands, 0, TOYS[:2]),
        ("no tool fits", no_fit, 2, ()),
        ("small talk beside tools", chats.small_talk, 3, ("clock",)),
        ("small talk", chats.small_talk, 3, None),
        ("name remembered", remembered_name, 3, None),
        ("fact remembered", remembered_fact, 3, None),
    ]
    out = [case(*group[:1], i, *group[1:]) for group in groups for i in range(count)]
    for kind in TOYS:
        out += [case(f"{kind}, unseen name", i, partial(chats.errand, kind=kind), 0, (kind,), True)
                for i in range(count)]
    return sorted(out, key=lambda one: one.index)


def right_content(want: str, got: str) -> bool:
    values = re.findall(f"{HOT}(.*?){COLD}", want)
    return all(value in got for value in values) if values else got == plain(want)


def calls_of(reply: dict) -> list[tuple[str, dict]]:
    calls = reply.get("tool_calls") or []
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]


def judge(want: Message, reply: dict, thinking: bool) -> str:
    """What is wrong with a reply, or nothing."""
    try:
        calls = calls_of(reply)
    except ValueError:
        return "broken arguments"
    if calls != [(c.name, c.arguments) for c in want.calls]:
        return "calls"
    if not want.calls and not right_content(want.content, reply.get("content") or ""):
        return "content"
    if thinking != bool(reply.get("reasoning_content")):
        return "thinking"
    return ""


def post(url: str, body: dict) -> dict:
    data = json.dumps(body).encode()
    ask = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(ask, timeout=3600) as answer:
        return json.load(answer)["choices"][0]["message"]


def play(url: str, one: Case) -> dict:
    """Plays the replies of the last exchange; stops at the first wrong one."""
    messages = one.talk.messages
    for n in range(one.start + 1, len(messages)):
        if messages[n].role != "assistant":
            continue
        body = {**request(one.talk, n), "temperature": 0, "max_tokens": 256}
        reply = post(url, body)
        wrong = judge(messages[n], reply, one.talk.thinking)
        if wrong:
            want = {"content": messages[n].content,
                    "calls": [(c.name, c.arguments) for c in messages[n].calls]}
            return {"group": one.group, "wrong": wrong, "user": messages[one.start].content,
                    "want": want, "got": reply}
    return {"group": one.group, "wrong": ""}


def serve(program: str, model: str) -> tuple[subprocess.Popen, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([program, "serve", model, "--port", str(port), "--quiet"])
    base = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{base}/ready").close()
            return server, f"{base}/v1/chat/completions"
        except OSError:
            time.sleep(0.1)
    server.terminate()
    raise SystemExit("the server does not become ready")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dsv4", required=True, help="the program")
    parser.add_argument("--model", required=True)
    parser.add_argument("--count", type=int, default=50, help="cases of a group")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    server, url = serve(args.dsv4, args.model)
    pool = ThreadPoolExecutor(8)
    total: Counter = Counter()
    right: Counter = Counter()
    try:
        with args.out.open("w") as out:
            for done in as_completed([pool.submit(play, url, one) for one in cases(args.count)]):
                result = done.result()
                out.write(json.dumps(result, ensure_ascii=False) + "\n")
                out.flush()
                total[result["group"]] += 1
                right[result["group"]] += not result["wrong"]
    except KeyboardInterrupt:
        print("ended early")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        server.terminate()
        server.wait()
    for group, count in total.items():
        print(f"{group:34} {right[group]:4} of {count}")


if __name__ == "__main__":
    main()
