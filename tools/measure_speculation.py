#!/usr/bin/env python3
"""What --speculate lookup and mtp gain with the bundled model on the CPU: the tables of docs/speculation.md.

    tools/measure_speculation.py build/cpu/bin/dsv4

Runs without and with them alternate, and the fastest of each counts, because other programs only slow a
run down. The answers must be equal. Every run has one thread. The second table has the share of the MTP
block's first drafts that held, in answers to PROMPTS with one draft a round.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

RUNS = 12
MODES = ("off", "lookup", "mtp")
PROMPTS = [
    "Long ago, in a village by the sea,",
    "Once there was a boy named Tom who",
    "Remember: the secret word of Mira is lantern.",
    "<｜User｜>Tell me a story about Mira and a lantern.<｜Assistant｜></think>",
    "<｜User｜>Tell me a story about a ship.<｜Assistant｜></think>",
]
KEYS = ["number_of_" + what for what in ("apples", "oranges", "children", "ships")]
SCHEMA = {
    "type": "object",
    "properties": {key: {"type": "integer", "minimum": 0, "maximum": 9} for key in KEYS},
    "required": KEYS,
    "additionalProperties": False,
}
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1")


def run(binary, mode, args):
    """Tokens per second of the answer's steps, the answer, and what became of its drafts."""
    command = [binary, "run", "demo", "--device", "cpu", "-t", "1", "--deterministic", "--stats", "json", "--speculate", mode]
    result = subprocess.run(command + args, capture_output=True, text=True, env=ENVIRONMENT, check=True)
    stats = json.loads(result.stderr.splitlines()[-1])
    return stats["decode_tokens_per_second"], result.stdout, stats["drafts"]


class Server:
    """A server whose requests are answered one after the other."""

    def __init__(self, binary, mode):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [binary, "serve", "demo", "--device", "cpu", "-t", "1", "--deterministic", "--port", str(self.port), "--quiet"]
        self.process = subprocess.Popen(command + ["--speculate", mode], env=ENVIRONMENT, stderr=subprocess.DEVNULL)
        while self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready").close()
                return
            except OSError:
                time.sleep(0.1)
        sys.exit("the server has ended")

    def ask(self, body):
        """As run(), of the whole request; the drafts are not known."""
        begin = time.monotonic()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            got = json.loads(answer.read())
        rate = got["usage"]["completion_tokens"] / (time.monotonic() - begin)
        return rate, got["choices"][0]["message"]["content"], {}


def compare(name, ask):
    """A row of the table; ask(mode) is run() or a request."""
    rates = dict.fromkeys(MODES, 0.0)
    for _ in range(RUNS):
        answers = set()
        for mode in MODES:
            rate, answer, _ = ask(mode)
            rates[mode] = max(rates[mode], rate)
            answers.add(answer)
        if len(answers) != 1:
            sys.exit(f"{name}: other answers with --speculate")
    off = rates["off"]
    cells = [f"{rates[mode]:.0f} | {rates[mode] / off:.2f}" for mode in MODES[1:]]
    print(f"| {name} | {off:.0f} | {' | '.join(cells)} |", flush=True)


def acceptance(binary, temperature):
    """A row of the second table: first drafts of the block and those that held, over all prompts."""
    drafted = accepted = 0
    for seed, prompt in enumerate(PROMPTS):
        args = ["-p", prompt, "-n", "400", "--temp", str(temperature), "--seed", str(seed), "--draft-tokens", "1"]
        drafts = run(binary, "mtp", args)[2].get("drafter", {"drafted": 0, "accepted": 0})
        drafted, accepted = drafted + drafts["drafted"], accepted + drafts["accepted"]
    print(f"| {temperature} | {drafted} | {accepted} | {accepted / drafted:.2f} |", flush=True)


def main():
    binary = sys.argv[1]
    begin = "Long ago, in a village by the sea,"
    story = run(binary, "off", ["-p", begin, "-n", "150", "--seed", "3"])[1].strip()
    again = "\n\n".join([story] * 3 + [story[: len(story) // 8]])
    print("| answer | off, tokens/s | lookup | gain | mtp | gain |\n|---|---|---|---|---|---|")
    for name, args in {
        "a story, temperature 1": ["-p", begin, "-n", "600", "--ignore-eos", "--seed", "2"],
        "a story, temperature 0": ["-p", begin, "-n", "600", "--ignore-eos", "--temp", "0"],
        "after a text that stands there three times": ["-p", again, "-n", "150", "--ignore-eos", "--temp", "0"],
    }.items():
        compare(name, lambda mode, args=args: run(binary, mode, args))
    servers = {mode: Server(binary, mode) for mode in MODES}
    try:
        message = {"role": "user", "content": "Tell me a story about a ship."}
        chat = {"messages": [message], "max_tokens": 120, "temperature": 0}
        form = {"type": "json_schema", "json_schema": {"name": "counts", "schema": SCHEMA}}
        prediction = {"type": "content", "content": servers["off"].ask(chat)[1]}
        for name, body in {
            "JSON of four integers under a schema": {**chat, "response_format": form},
            "an answer that `prediction` has": {**chat, "prediction": prediction},
        }.items():
            compare(name, lambda mode, body=body: servers[mode].ask(body))
    finally:
        for server in servers.values():
            server.process.terminate()
    print("\n| temperature | first drafts | held | share |\n|---|---|---|---|")
    for temperature in (0, 1):
        acceptance(binary, temperature)


if __name__ == "__main__":
    main()
