#!/usr/bin/env python3
"""Two `dsv4 serve demo` behind HAProxy and behind nginx, with the files of deploy/: the messages of a conversation reach
the replica that has its beginning; one replica is killed under load, and no request of which the client had seen no byte
is lost; the next message of its conversations is answered by the other. Prints "skipped: NAME" for a proxy that is not
installed (tools/setup.sh serve), and ends with "N passed, N failed"; the exit status is 77 where neither is installed.
Usage: check_replicas.py BINARY"""

import concurrent.futures
import http.client
import json
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

from server import Server, give_up_after
from tally import check, failures, finish, free_port, passed

DEPLOY = pathlib.Path(__file__).parents[2] / "deploy"
OPTIONS = ["--max-batch", "8", "--context", "2048", "--cache-tokens", "65536", "--prefix-checkpoints", "256",
           "--checkpoint-interval", "128"]
CLIENTS, CONVERSATIONS, TURNS = 8, 24, 4
LEAST_AFFINITY = 0.95


def with_addresses(text, listen, port, servers):
    """The file as it is in deploy/, but for the addresses."""
    text, listens = re.subn(listen, lambda line: line.group(0).replace(line.group(1), f"127.0.0.1:{port}"), text)
    for number, server in enumerate(servers, 1):
        if f"10.0.0.{number}:8000" not in text:
            sys.exit(f"deploy/ names no server 10.0.0.{number}:8000")
        text = text.replace(f"10.0.0.{number}:8000", f"127.0.0.1:{server.port}")
    if listens != 1:
        sys.exit(f"{listens} lines of deploy/ listen, want one")
    return text


def haproxy(folder, port, servers):
    config = folder / "haproxy.cfg"
    config.write_text(with_addresses((DEPLOY / "haproxy.cfg").read_text(), r"bind (:8080)", port, servers))
    return ["haproxy", "-db", "-f", config], {f"r{n}": s for n, s in enumerate(servers, 1)}


def nginx(folder, port, servers):
    site = with_addresses((DEPLOY / "nginx.conf").read_text(), r"listen (8080);", port, servers)
    paths = "".join(f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    config = folder / "nginx.conf"
    config.write_text(f"daemon off;\npid {folder}/nginx.pid;\nerror_log {folder}/error.log;\nevents {{}}\n"
                      f"http {{\naccess_log off;\n{paths}{site}}}\n")
    return ["nginx", "-p", folder, "-e", folder / "error.log", "-c", config], {f"127.0.0.1:{s.port}": s for s in servers}


class Proxy:
    def __init__(self, program, servers):
        self.folder, self.port = pathlib.Path(tempfile.mkdtemp()), free_port()
        self.folder.chmod(0o755)  # nginx's workers are another user's where root starts it
        command, self.servers = {"haproxy": haproxy, "nginx": nginx}[program](self.folder, self.port, servers)
        self.log = open(self.folder / "output.log", "wb")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        for _ in range(500):
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        sys.exit(f"{program} did not start: {(self.folder / 'output.log').read_text()}")

    def replica(self, answer):
        """The server that answered. nginx names all that it tried."""
        return self.servers[answer.getheader("X-Dsv4-Replica").split(", ")[-1]]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(10)
        self.log.close()
        shutil.rmtree(self.folder)


def post(port, body, headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"} | headers)
    return connection, connection.getresponse()


def words(rng, number):
    return " ".join(rng.choice(["the", "fox", "sea", "old", "king", "house", "by", "a", "river", "ran"]) for _ in range(number))


class Conversation:
    """Its first message is longer than a step of the prefix cache."""

    def __init__(self, number, named, system=False):
        self.rng = random.Random(number)
        self.headers = {"X-Session-Id": f"conversation-{number}"} if named else {}
        self.messages = [{"role": "system", "content": "You tell stories."}] if system else []
        self.replicas, self.cached = [], []

    def turn(self, proxy):
        self.messages.append({"role": "user", "content": words(self.rng, 60 if self.replicas else 220)})
        connection, answer = post(proxy.port, {"messages": self.messages, "max_tokens": 8, "temperature": 0}, self.headers)
        text = answer.read()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {text[:200]}")
        report = json.loads(text)
        self.messages.append({"role": "assistant", "content": report["choices"][0]["message"].get("content") or ""})
        self.replicas.append(proxy.replica(answer))
        self.cached.append(report["usage"]["prompt_tokens_details"]["cached_tokens"])


def follow_ups(conversations):
    return [(c.replicas[i] is c.replicas[i - 1], c.cached[i] > 0) for c in conversations for i in range(1, len(c.replicas))]


def keeps_conversations(name, proxy, forms):
    conversations = [Conversation(n, **forms[n % len(forms)]) for n in range(CONVERSATIONS)]

    def talk(one):
        for _ in range(TURNS):
            one.turn(proxy)

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(talk, conversations))
    turns = follow_ups(conversations)
    same, cached = (sum(turn[i] for turn in turns) / len(turns) for i in (0, 1))
    check(f"{name}: {same:.1%} of {len(turns)} messages reach the replica of the one before", same >= LEAST_AFFINITY, same)
    check(f"{name}: {cached:.1%} find their beginning computed", cached >= LEAST_AFFINITY, cached)
    used = {id(c.replicas[0]) for c in conversations}
    check(f"{name}: both replicas have conversations", len(used) == 2, used)
    return conversations


def ask_until(stop, proxy, number, outcomes):
    """Plain answers and streams, one after the other. An outcome: (what became of it, when it ended)."""
    rng = random.Random(number)
    while not stop.is_set():
        stream = rng.random() < 0.5
        headers = {"X-Session-Id": f"load-{rng.randrange(1000)}"}
        body = {"messages": [{"role": "user", "content": words(rng, 20)}], "max_tokens": 60, "min_tokens": 60,
                "stream": stream}
        seen, outcome = 0, "lost"
        try:
            connection, answer = post(proxy.port, body, headers)
            if answer.status == 200:
                text = b""
                try:
                    while part := answer.read1(65536):
                        seen += len(part)
                        text = (text + part)[-200:]
                    outcome = "whole" if (b"[DONE]" in text if stream else b"}" in text) else "cut"
                except (http.client.HTTPException, OSError):
                    outcome = "cut"
                if outcome == "cut" and seen == 0:
                    outcome = "lost"
            else:
                outcome = f"lost: {answer.status}"
            connection.close()
        except (http.client.HTTPException, OSError) as error:
            outcome = f"lost: {error!r}"
        outcomes.append((outcome, time.monotonic()))


def wait_for(outcomes, number):
    """Until so many requests more have ended."""
    number += len(outcomes)
    end = time.monotonic() + 60
    while len(outcomes) < number and time.monotonic() < end:
        time.sleep(0.02)


def survives_a_kill(name, proxy, conversations):
    victim = conversations[0].replicas[-1]
    of_victim = [one for one in conversations if one.replicas[-1] is victim]
    stop, outcomes = threading.Event(), []
    clients = [threading.Thread(target=ask_until, args=(stop, proxy, n, outcomes)) for n in range(CLIENTS)]
    for client in clients:
        client.start()
    wait_for(outcomes, 2 * CLIENTS)
    victim.process.kill()
    killed = time.monotonic()
    wait_for(outcomes, 4 * CLIENTS)  # those that ran at the kill, and as many again
    stop.set()
    for client in clients:
        client.join()
    kinds = [outcome for outcome, _ in outcomes]
    lost = [kind for kind in kinds if kind.startswith("lost")]
    before, after = (sum(kind == "whole" and (at < killed) == first for kind, at in outcomes) for first in (True, False))
    check(f"{name}: {before} answers before a replica was killed, {after} after, {kinds.count('cut')} streams were cut, "
          f"{len(lost)} requests were lost", not lost and before and after, lost[:3])
    moved = 0
    for one in of_victim:
        one.turn(proxy)
        moved += one.replicas[-1] is not victim
    check(f"{name}: the next messages of its {len(of_victim)} conversations are answered by the other",
          of_victim and moved == len(of_victim), moved)


def main():
    give_up_after(600)
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    named, first_message, with_system = {"named": True}, {"named": False}, {"named": False, "system": True}
    for program, forms in (("haproxy", [named, first_message, with_system]), ("nginx", [named])):
        if not shutil.which(program) and not pathlib.Path("/usr/sbin", program).exists():
            print(f"skipped: {program} (not installed)")
            continue
        servers = [Server(sys.argv[1], *OPTIONS) for _ in range(2)]
        with Proxy(program, servers) as proxy:
            conversations = keeps_conversations(program, proxy, forms)
            survives_a_kill(program, proxy, conversations)
        for server in servers:
            server.process.kill()
    return finish() if passed or failures else 77


if __name__ == "__main__":
    sys.exit(main())
