#!/usr/bin/env python3
"""What --speculate lookup gains with the bundled model on the CPU: the table of docs/speculation.md.

    tools/measure_speculation.py build/cpu/bin/dsv4

Runs without and with it alternate, and the fastest of each counts, because other programs only slow a
run down. The answers must be equal. Every run has one thread.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

RUNS = 12
KEYS = ["number_of_" + what for what in ("apples", "oranges", "children", "ships")]
SCHEMA = {
    "type": "object",
    "properties": {key: {"type": "integer", "minimum": 0, "maximum": 9} for key in KEYS},
    "required": KEYS,
    "additionalProperties": False,
}
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1")


def run(binary, mode, args):
    """Tokens per second of the answer's steps, and the answer."""
    command = [binary, "run", "demo", "-t", "1", "--deterministic", "--stats", "json", "--speculate", mode]
    result = subprocess.run(command + args, capture_output=True, text=True, env=ENVIRONMENT, check=True)
    return json.loads(result.stderr.splitlines()[-1])["decode_tokens_per_second"], result.stdout


class Server:
    """A server whose requests are answered one after the other."""

    def __init__(self, binary, mode):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [binary, "serve", "demo", "-t", "1", "--deterministic", "--port", str(self.port), "--quiet"]
        self.process = subprocess.Popen(command + ["--speculate", mode], env=ENVIRONMENT, stderr=subprocess.DEVNULL)
        while self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready").close()
                return
            except OSError:
                time.sleep(0.1)
        sys.exit("the server has ended")

    def ask(self, body):
        """Tokens per second of the whole request, and the answer."""
        begin = time.monotonic()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            got = json.loads(answer.read())
        rate = got["usage"]["completion_tokens"] / (time.monotonic() - begin)
        return rate, got["choices"][0]["message"]["content"]


def compare(name, plain, fast):
    rates = {"off": 0.0, "lookup": 0.0}
    for _ in range(RUNS):
        (off, want), (on, got) = plain(), fast()
        if want != got:
            sys.exit(f"{name}: other answers with --speculate lookup")
        rates = {"off": max(rates["off"], off), "lookup": max(rates["lookup"], on)}
    print(f"| {name} | {rates['off']:.0f} | {rates['lookup']:.0f} | {rates['lookup'] / rates['off']:.2f} |")


def main():
    binary = sys.argv[1]
    begin = "Long ago, in a village by the sea,"
    story = run(binary, "off", ["-p", begin, "-n", "150", "--seed", "3"])[1].strip()
    again = "\n\n".join([story] * 3 + [story[: len(story) // 8]])
    print("| answer | off, tokens/s | lookup | gain |\n|---|---|---|---|")
    for name, args in {
        "a story, temperature 1": ["-p", begin, "-n", "600", "--ignore-eos", "--seed", "2"],
        "a story, temperature 0": ["-p", begin, "-n", "600", "--ignore-eos", "--temp", "0"],
        "after a text that stands there three times": ["-p", again, "-n", "150", "--ignore-eos", "--temp", "0"],
    }.items():
        compare(name, lambda args=args: run(binary, "off", args), lambda args=args: run(binary, "lookup", args))
    off, lookup = Server(binary, "off"), Server(binary, "lookup")
    try:
        message = {"role": "user", "content": "Tell me a story about a ship."}
        chat = {"messages": [message], "max_tokens": 120, "temperature": 0}
        form = {"type": "json_schema", "json_schema": {"name": "counts", "schema": SCHEMA}}
        prediction = {"type": "content", "content": off.ask(chat)[1]}
        for name, body in {
            "JSON of four integers under a schema": {**chat, "response_format": form},
            "an answer that `prediction` has": {**chat, "prediction": prediction},
        }.items():
            compare(name, lambda body=body: off.ask(body), lambda body=body: lookup.ask(body))
    finally:
        off.process.terminate()
        lookup.process.terminate()


if __name__ == "__main__":
    main()
