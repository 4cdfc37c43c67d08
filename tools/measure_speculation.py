#!/usr/bin/env python3
"""What --speculate lookup and mtp gain with the bundled model on the CPU: the tables of docs/speculation.md.

    tools/measure_speculation.py build/cpu/bin/dsv4

Runs without and with them alternate, and the fastest of each counts, because other programs only slow a
run down. Seconds are the processor time of the one thread that computes, which other programs change less than
the time of day; the policy that chooses drafts sees the time of day. The answers must be equal. The second table
has the share of the MTP block's first drafts that held, in answers to PROMPTS with one draft a round.
"""

import json
import os
import resource
import socket
import subprocess
import sys
import time
import urllib.request

RUNS = 8
REQUESTS = 8  # of a server, for each number: its clock has ticks of 10 ms
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


def children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(binary, mode, args):
    """Seconds of the process, the answer, and what became of its drafts."""
    command = [binary, "run", "demo", "--device", "cpu", "-t", "1", "--deterministic", "--stats", "json", "--speculate", mode]
    before = children_seconds()
    result = subprocess.run(command + args, capture_output=True, text=True, env=ENVIRONMENT, check=True)
    stats = json.loads(result.stderr.splitlines()[-1])
    return children_seconds() - before, result.stdout, stats["drafts"]


class Runs:
    """Answers of the command line, of so many tokens. What a run takes until its first token is not counted."""

    def __init__(self, binary, args, tokens):
        self.binary, self.args, self.tokens = binary, args, tokens
        self.first, self.all = dict.fromkeys(MODES, 1e9), dict.fromkeys(MODES, 1e9)

    def measure(self, mode):
        self.first[mode] = min(self.first[mode], run(self.binary, mode, self.args + ["-n", "1"])[0])
        seconds, answer, _ = run(self.binary, mode, self.args + ["-n", str(self.tokens)])
        self.all[mode] = min(self.all[mode], seconds)
        return answer

    def rate(self, mode):
        return (self.tokens - 1) / (self.all[mode] - self.first[mode])


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

    def seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, body):
        """The answer and its tokens."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            got = json.loads(answer.read())
        return got["choices"][0]["message"]["content"], got["usage"]["completion_tokens"]


class Requests:
    """The same request again and again, to a server for each mode; prompts count, too."""

    def __init__(self, servers, body):
        self.servers, self.body, self.best = servers, body, dict.fromkeys(MODES, 0.0)

    def measure(self, mode):
        server = self.servers[mode]
        before = server.seconds()
        for _ in range(REQUESTS):
            answer, tokens = server.ask(self.body)
        self.best[mode] = max(self.best[mode], REQUESTS * tokens / max(server.seconds() - before, 0.01))
        return answer

    def rate(self, mode):
        return self.best[mode]


def compare(name, work):
    """A row of the table, of Runs or Requests."""
    for _ in range(RUNS):
        if len({work.measure(mode) for mode in MODES}) != 1:
            sys.exit(f"{name}: other answers with --speculate")
    off = work.rate("off")
    cells = [f"{work.rate(mode):.0f} | {work.rate(mode) / off:.2f}" for mode in MODES[1:]]
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
    for name, tokens, args in (
        ("a story, temperature 1", 600, ["-p", begin, "--ignore-eos", "--seed", "2"]),
        ("a story, temperature 0", 600, ["-p", begin, "--ignore-eos", "--temp", "0"]),
        ("after a text that stands there three times", 150, ["-p", again, "--ignore-eos", "--temp", "0"]),
    ):
        compare(name, Runs(binary, args, tokens))
    servers = {mode: Server(binary, mode) for mode in MODES}
    try:
        message = {"role": "user", "content": "Tell me a story about a ship."}
        chat = {"messages": [message], "max_tokens": 120, "temperature": 0}
        form = {"type": "json_schema", "json_schema": {"name": "counts", "schema": SCHEMA}}
        prediction = {"type": "content", "content": servers["off"].ask(chat)[0]}
        for name, body in {
            "JSON of four integers under a schema": {**chat, "response_format": form},
            "an answer that `prediction` has": {**chat, "prediction": prediction},
        }.items():
            compare(name, Requests(servers, body))
    finally:
        for server in servers.values():
            server.process.terminate()
    print("\n| temperature | first drafts | held | share |\n|---|---|---|---|")
    for temperature in (0, 1):
        acceptance(binary, temperature)


if __name__ == "__main__":
    main()
