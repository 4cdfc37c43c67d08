#!/usr/bin/env python3
"""NVIDIA Dynamo's own frontend before `dsv4 serve demo`, by deploy/dynamo/dsv4_dynamo.py:

    check_dynamo.py BINARY ENVIRONMENT      ENVIRONMENT: a venv with ai-dynamo

The frontend finds the worker by a folder, without etcd, and routes by the KV events of the server. Completions of the same
ids end in the text that dsv4 gives itself, chats stream, stops and lengths are kept, what the worker cannot do is an error, and
a client that leaves ends the request in dsv4."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from server import Server, give_up_after

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/demo"
SECONDS = 90  # for a start


def free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


def post(url, route, body, timeout=60):
    request = urllib.request.Request(url + route, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=timeout)


def answer(url, route, body):
    return json.load(post(url, route, body))


def metric(server, name):
    text = urllib.request.urlopen(server.url + "/metrics").read().decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


class Cluster:
    def __init__(self, binary, environment, folder):
        events = f"tcp://127.0.0.1:{free_port()}"
        self.server = Server(binary, "--device", "cpu", "--served-model-name", "demo", "--kv-events", events, model=str(MODEL))
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = open(pathlib.Path(folder) / "log", "w+")
        env = os.environ | {"DYN_FILE_KV": str(pathlib.Path(folder) / "kv"), "DYN_EVENT_PLANE": "zmq", "HF_HUB_OFFLINE": "1"}
        python = str(pathlib.Path(environment) / "bin/python")
        self.children = [subprocess.Popen(command, env=env, stdout=self.log, stderr=subprocess.STDOUT) for command in (
            [python, str(ROOT / "deploy/dynamo/dsv4_dynamo.py"), "--url", self.server.url, "--model", str(MODEL),
             "--served-model-name", "demo", "--kv-events", events, "--discovery-backend", "file", "--event-plane", "zmq"],
            [python, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", self.url.rsplit(":", 1)[1],
             "--discovery-backend", "file", "--router-mode", "kv", "--event-plane", "zmq"])]

    def wait(self):
        end = time.time() + SECONDS
        while time.time() < end and all(child.poll() is None for child in self.children):
            try:
                if any(model["id"] == "demo" for model in json.load(urllib.request.urlopen(self.url + "/v1/models"))["data"]):
                    return
            except OSError:
                pass
            time.sleep(0.5)
        self.log.seek(0)
        sys.exit("Dynamo did not start: " + self.log.read()[-3000:])

    def close(self):
        for child in self.children:
            child.terminate()
        for child in self.children:
            child.wait(30)


def check(cluster):
    wrong = []

    def expect(what, got, want):
        if got != want:
            wrong.append(f"{what}: {got!r}, want {want!r}")

    text = {"model": "demo", "prompt": "Long ago, a fisherman", "max_tokens": 24, "temperature": 0}
    # Dynamo begins a completion without the token that begins a text, which dsv4 puts before a string.
    ids = answer(cluster.server.url, "/v1/completions/render", text)[0]["token_ids"][1:]
    here = answer(cluster.url, "/v1/completions", text)
    direct = answer(cluster.server.url, "/v1/completions", text | {"prompt": ids})
    expect("completion", here["choices"][0]["text"], direct["choices"][0]["text"])
    expect("its reason", here["choices"][0]["finish_reason"], "length")
    expect("its tokens", here["usage"]["completion_tokens"], 24)
    sampled = text | {"temperature": 1.0, "seed": 7, "top_p": 0.9}
    expect("a seed", answer(cluster.url, "/v1/completions", sampled)["choices"][0]["text"],
           answer(cluster.server.url, "/v1/completions", sampled | {"prompt": ids})["choices"][0]["text"])
    chat = {"model": "demo", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 16, "stream": True}
    events = [line for line in post(cluster.url, "/v1/chat/completions", chat).read().decode().splitlines() if line.startswith("data: {")]
    if len(events) < 5:
        wrong.append(f"a chat of 16 tokens came in {len(events)} events")
    before = metric(cluster.server, "dsv4_requests_running")
    stream = post(cluster.url, "/v1/completions", text | {"max_tokens": 20000, "stream": True, "ignore_eos": True})
    stream.readline()
    stream.close()
    end = time.time() + 20
    while metric(cluster.server, "dsv4_requests_running") > before and time.time() < end:
        time.sleep(0.2)
    expect("requests that run after their client has left", metric(cluster.server, "dsv4_requests_running"), before)
    return wrong


def main():
    give_up_after(400)
    binary, environment = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(binary, environment, folder)
        try:
            cluster.wait()
            wrong = check(cluster)
        finally:
            cluster.close()
            cluster.log.seek(0)
            tail = cluster.log.read()[-2500:]
    print("\n".join(wrong) or "dynamo: completions, chats, seeds and an abandoned stream are right")
    if wrong:
        print(tail)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
