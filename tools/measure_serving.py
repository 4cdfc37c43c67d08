#!/usr/bin/env python3
"""Measures `dsv4 serve` on a GPU by the load that stock clients make, and writes one JSON file.

    tools/measure_serving.py BINARY --out FILE [--gpus 1] [--experts k3-e4m3] [--load 8192:1024:1,16,64,256] ...

A server with random weights of V4-Flash (`--synthetic`) has the scheduler, the cache and the steps of one with released
weights. A load is tokens of each prompt, tokens of each answer, and numbers of clients, which ask again as soon as they have an
answer: `dsv4 bench serve` with random token ids, so that no prefix is found. Definitions are those of AIPerf and of vLLM's
benchmark: time to the first token; time per output token, (end - first token) / (tokens - 1); total tokens/s, those of
prompts and answers over the time from the first request to the last answer. Watts are the mean of nvidia-smi, twice a second.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "serve"))
from server import Server  # noqa: E402

LOADS = ("8192:1024:1,16,64,256", "1024:1024:64")
LEAST_REQUESTS, MOST_REQUESTS = 4, 256
VOCABULARY = 129280  # of V4-Flash and V4-Pro


class Power:
    """Mean watts of a GPU while it is entered."""

    def __init__(self, gpu):
        self.gpu, self.watts, self.done = gpu, [], threading.Event()

    def sample(self):
        command = ["nvidia-smi", "-i", str(self.gpu), "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
        while not self.done.wait(0.5):
            self.watts.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))

    def __enter__(self):
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()

    def mean(self):
        return round(statistics.mean(self.watts)) if self.watts else None


def ask(binary, server, prompt, answer, clients, requests):
    command = [binary, "bench", "serve", server.url, "--prompt-tokens", str(prompt), "--vocabulary", str(VOCABULARY), "--tokens", str(answer),
               "--clients", str(clients), "--requests", str(requests), "--seed", str(clients), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(binary, server, load, clients, gpu):
    prompt, answer = load
    requests = max(clients, min(2 * clients, MOST_REQUESTS), LEAST_REQUESTS)
    ask(binary, server, prompt, 8, 1, 1)  # the first request of a server loads kernels
    with Power(gpu) as power:
        result = ask(binary, server, prompt, answer, clients, requests)
    if result["good"] != requests:
        sys.exit(f"measure_serving: {requests - result['good']} of {requests} requests failed")
    del result["url"]
    return {"prompt": prompt, "answer": answer, "clients": clients, **result, "watts": power.mean()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary")
    parser.add_argument("--out", required=True)
    parser.add_argument("--gpus", default="1", help="as serve takes them")
    parser.add_argument("--experts", default="k3-e4m3")
    parser.add_argument("--load", action="append", metavar="PROMPT:ANSWER:CLIENTS,..")
    options = parser.parse_args()
    loads = []
    for text in options.load or LOADS:
        prompt, answer, clients = text.split(":")
        loads.append((int(prompt), int(answer), [int(n) for n in clients.split(",")]))
    most = max(n for _, _, clients in loads for n in clients)
    context = max(prompt + answer for prompt, answer, _ in loads) + 128
    arguments = ["--synthetic", "flash", "--experts", options.experts, "--gpus", options.gpus, "--max-batch", str(most),
                 "--context", str(context), "--cache-tokens", str(most * context), "--max-itl-ms", "0", "--max-batch-tokens", "8192",
                 "--max-connections-per-address", str(2 * most), "--max-queue", str(2 * most)]
    devices = json.loads(subprocess.run([options.binary, "inspect", "device", "--json"], check=True, capture_output=True, text=True).stdout)
    first = int(options.gpus.split(",")[0]) if "," in options.gpus else 0
    server = Server(options.binary, *arguments, model=None)
    report = {"device": devices["devices"][first]["name"], "driver": devices["driver"], "experts": options.experts, "gpus": options.gpus,
              "server": arguments, "results": []}
    for prompt, answer, clients in loads:
        for count in clients:
            report["results"].append(measure(options.binary, server, (prompt, answer), count, first))
            Path(options.out).write_text(json.dumps(report) + "\n")  # each load, should a later one fail
    return server.stop()


if __name__ == "__main__":
    sys.exit(main())
