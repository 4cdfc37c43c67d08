#!/usr/bin/env python3
"""A long mixed load on `dsv4 serve` with the bundled model, and what must stay flat under it. Ends with "N passed, N failed".

    tools/serve/soak.py BINARY [--seconds 10800] [--requests N] [--clients 20] [--patience 1] [--sanitized]
                        [--speculate off|lookup|mtp|auto | --gpus LIST]

Clients ask for whole answers, streams, answers under schemas, and leave at random places; conversations share prefixes, the
cache holds less than runs at once, so that requests are preempted and prefixes go to host memory and to the disk; requests
are refused, caches are dropped, and files of the disk tier are damaged, cut and deleted. The server is deterministic, so
every answer must be the one that the request got alone, and what a client read before it left the beginning of that.

Resident memory in the last quarter is compared with that in the second, in a run of ten minutes or more and two minutes of
the server's processor time: caches still fill before. File descriptors and threads of the idle server are compared with those before the load. Under a sanitizer
(tools/load_sanitized.sh) --patience gives requests more time, and --sanitized only prints memory, most of which is the sanitizer's.

The load ends after --seconds, or after --requests.

With --speculate each request alone must also get the answer of a server without drafts, and as many prompt tokens from
stored prefixes; the metrics of drafts must add up (docs/speculation.md). With --gpus the server has a rank on each GPU of the
list, and the other server is one GPU's."""

import argparse
import asyncio
import contextlib
import json
import math
import os
import pathlib
import random
import re
import statistics
import sys
import tempfile
import time

import load
from tally import check, finish
from server import Server

OPTIONS = ("--deterministic", "--context", "2048", "--max-batch", "16", "--cache-tokens", "2048", "--prefix-checkpoints", "4",
           "--checkpoint-interval", "256", "--ram-cache", "0.01", "--disk-cache-gb", "0.05", "--max-queue", "64", "--threads", "1")
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}
QUESTIONS, MEMORY_SHARE, MEMORY_LEAST = 40, 0.02, 4 << 20
FILLING_SECONDS, FILLING_CPU_SECONDS = 600, 120
HITS_SHARE = 0.05  # noise of prompt tokens from stored prefixes: whether a tier has a unit in time depends on the machine
SOURCES = {"lookup": "lookup", "mtp": "drafter"}
timeout = 120


def question(number):
    """A body whose conversation has a beginning that others have too."""
    rng = random.Random(number)
    words = ["mill", "river", "farm", "kite", "village", "boy", "girl", "sea", "morning", "old", "red"]

    def text(seed, sentences):
        one = random.Random(seed)
        return " ".join(f"The {one.choice(words)} and the {one.choice(words)}." for _ in range(sentences))
    turns = [{"role": "user", "content": text(number % 5, 20)}]
    for turn in range(rng.randrange(3)):
        turns += [{"role": "assistant", "content": text(1000 + number % 10 * 10 + turn, 10)},
                  {"role": "user", "content": text(100 * number + turn, rng.randrange(1, 40))}]
    body = {"messages": turns, "max_tokens": rng.randrange(1, 160), "seed": number, "temperature": rng.choice([0, 0.8])}
    if number % 4 == 0:  # long answers, which make others wait or lose their pages
        body |= {"max_tokens": 500, "ignore_eos": True}
    elif number % 5 == 4:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    return body


def request(path, body):
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


async def exchange(server, path, body, most=None):
    """The status and the bytes of an answer; with `most` the client leaves after so many."""
    async def read():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            writer.write(request(path, body))
            data = b""
            while most is None or len(data) < most:
                piece = await reader.read(1 << 16 if most is None else most - len(data))
                if not piece:
                    break
                data += piece
            return data
        finally:
            writer.transport.abort()
    data = await asyncio.wait_for(read(), timeout)
    return data[9:12].decode(), data.partition(b"\r\n\r\n")[2]


def text_of_stream(data):
    """The content of the whole events of a stream that may be cut."""
    text = ""
    for line in data.decode(errors="ignore").splitlines():
        if not line.startswith("data: {"):
            continue
        try:
            event = json.loads(line[len("data: "):])
        except json.JSONDecodeError:
            break
        for choice in event.get("choices", []):
            text += choice["delta"].get("content") or ""
    return text


async def chat(server, body, most=None):
    """The status and the text of an answer, streamed where `most` or the body says so."""
    path = "/v1/chat/completions"
    if most is None and not body.get("stream"):
        status, data = await exchange(server, path, body)
        return status, json.loads(data)["choices"][0]["message"]["content"] if status == "200" else ""
    status, data = await exchange(server, path, body | {"stream": True}, most)
    return status, text_of_stream(data)


class Load:
    def __init__(self, server, folder, alone):
        self.server, self.folder, self.alone = server, folder, alone
        self.counts, self.wrong, self.rng = {}, [], random.Random(1)
        self.made = 0

    def count(self, kind):
        self.counts[kind] = self.counts.get(kind, 0) + 1

    async def one(self):
        rng, number = self.rng, self.rng.randrange(QUESTIONS)
        body, kind = question(number), self.rng.random()
        if rng.random() < 0.3:
            body["priority"] = rng.randrange(-2, 3)
        if kind < 0.3:
            most = rng.randrange(200, 6000)
            status, text = await chat(self.server, body, most)
            self.count("left")
            if status == "200" and not self.alone[number].startswith(text):
                self.wrong.append((number, text, self.alone[number]))
        elif kind < 0.9:
            status, text = await chat(self.server, body | {"stream": kind < 0.6})
            self.count(status)
            if status == "200" and text != self.alone[number]:
                self.wrong.append((number, text, self.alone[number]))
        elif kind < 0.95:
            status, _ = await exchange(self.server, "/v1/chat/completions", {"messages": 3})
            self.count(f"bad {status}")
        else:
            status, _ = await exchange(self.server, "/v1/dsv4/tokenize", {"prompt": "the mill " * rng.randrange(1, 500)})
            self.count(f"tokenize {status}")

    async def client(self, end, most):
        while time.monotonic() < end and self.made < most and self.server.end() is None:
            self.made += 1
            try:
                await self.one()
            except (ConnectionError, asyncio.TimeoutError, asyncio.IncompleteReadError) as error:
                self.wrong.append((type(error).__name__, str(error), ""))

    async def faults(self, end, most):
        """Damages, cuts and deletes files of the disk tier, and drops what is stored."""
        rng = random.Random(2)
        while time.monotonic() < end and self.made < most and self.server.end() is None:
            await asyncio.sleep(1 + 4 * rng.random())
            units = [path for path in pathlib.Path(self.folder).rglob("*") if path.is_file() and path.stat().st_size > 4096]
            if rng.random() < 0.1:
                with contextlib.suppress(ConnectionError):  # soak() says how a server ended
                    await exchange(self.server, "/v1/dsv4/cache/drop", {})
                    self.count("dropped caches")
            elif units:
                self.damage(rng, rng.choice(units))

    def damage(self, rng, path):
        try:
            how = rng.randrange(3)
            if how == 0:
                path.unlink()
            elif how == 1:
                os.truncate(path, rng.randrange(path.stat().st_size))
            else:
                with open(path, "r+b") as file:
                    file.seek(rng.randrange(path.stat().st_size))
                    file.write(b"\x55")
            self.count("damaged files")
        except FileNotFoundError:
            pass  # the server gave it up meanwhile


def descriptors(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


async def watch(server, run, end, seconds, most, samples):
    while time.monotonic() < end and run.made < most and server.end() is None:
        samples.append((server.resident(), descriptors(server), server.threads()))
        await asyncio.sleep(seconds / 120)


async def idle_figures(server):
    """Descriptors and threads once nothing runs and no client is connected."""
    await load.wait_idle(server, "the load")
    await asyncio.sleep(8)  # memory goes back when the server is idle
    return descriptors(server), server.threads()


async def ask_alone(server):
    """The answer to each question when nothing else runs, and how many prompt tokens stored prefixes spared."""
    texts = [(await chat(server, question(number)))[1] for number in range(QUESTIONS)]
    return texts, await load.metric(server, "dsv4_prefix_hits_total")


async def values(server, name):
    """A metric's values by their labels."""
    found = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", await load.get(server, "/metrics"), re.MULTILINE)
    return {labels: float(value) for labels, value in found}


async def check_drafts(server, name):
    """What the metrics of drafts say of each other."""
    drafted, accepted, places, rounds_by_tokens = [
        await values(server, f"dsv4_spec_{what}_total") for what in ("drafted", "accepted", "accepted_position", "round_tokens")]
    rounds, tokens = [await load.metric(server, f"dsv4_spec_{what}_total") for what in ("rounds", "tokens")]
    generated, held = await load.metric(server, "dsv4_generated_tokens_total"), sum(accepted.values())
    sources = ", ".join(f"{labels[len('source='):]} {accepted[labels]:.0f} of {drafted[labels]:.0f}" for labels in drafted)
    detail = f"{rounds:.0f} rounds, {tokens:.0f} of {generated:.0f} tokens, held {sources}, {list(places.values())}, {list(rounds_by_tokens.values())}"
    check("drafts that held were drafted", all(accepted[source] <= drafted[source] for source in drafted), detail)
    check("a round gives one token more than drafts held", tokens == rounds + held and tokens <= generated, detail)
    check("drafts that held, by source and by place", held == sum(places.values()), detail)
    sizes = {int(re.search(r"\d+", labels).group()): value for labels, value in rounds_by_tokens.items()}
    check("rounds by their tokens", rounds == sum(sizes.values()) and tokens == sum(n * value for n, value in sizes.items()), detail)
    asked = {labels: value for labels, value in drafted.items() if SOURCES.get(name, "") in labels}
    check("there were drafts", (sum(asked.values()) > 0 and held > 0) == (name != "off"), detail)


def check_beside(plain, texts, hits, how):
    """One request at a time, beside a server without drafts or ranks. how: what that server is."""
    wrong = [number for number in range(QUESTIONS) if texts[number] != plain[0][number]]
    check(f"answers are those {how}", not wrong, f"{QUESTIONS} answers, other ones to questions {wrong}")
    check(f"prefix hits are those {how}", abs(hits - plain[1]) <= HITS_SHARE * plain[1] and hits > 0,
          f"{hits:.0f} prompt tokens, {plain[1]:.0f} {how}")


async def soak(server, folder, options, plain):
    alone, hits = await ask_alone(server)
    if plain:
        check_beside(plain, alone, hits, "of one GPU" if options.gpus else "without drafts")
    before = await idle_figures(server)
    begin, samples, most = time.monotonic(), [], options.requests or math.inf
    end = begin + options.seconds
    run = Load(server, folder, alone)
    await asyncio.gather(*(run.client(end, most) for _ in range(options.clients)), run.faults(end, most),
                         watch(server, run, end, options.seconds, most, samples))
    check("the server lives", server.end() is None, server.end() or f"{run.made} requests in {time.monotonic() - begin:.0f} s")
    if options.requests:
        check("all requests were made", run.made == options.requests, f"{run.made} of {options.requests}")
    if server.end() is not None:
        return
    check("answers are those of requests alone", not run.wrong and run.counts.get("200", 0) > 0,
          f"{run.counts}, wrong: {run.wrong[:3]}")
    quarter = len(samples) // 4
    early = statistics.median(one[0] for one in samples[quarter:2 * quarter])
    late = statistics.median(one[0] for one in samples[-quarter:])
    mib = 1 << 20
    twelfth = max(1, len(samples) // 12)
    print("resident MiB over the run:", *(f"{statistics.median(one[0] for one in samples[at:at + twelfth]) / mib:.1f}"
                                           for at in range(0, len(samples), twelfth)), flush=True)
    fills = options.seconds < FILLING_SECONDS or server.cpu_seconds() < FILLING_CPU_SECONDS
    check("memory is flat", fills or options.sanitized or late - early <= max(MEMORY_SHARE * early, MEMORY_LEAST),
          f"{early / mib:.1f} MiB in the second quarter, {late / mib:.1f} in the last, {max(one[0] for one in samples) / mib:.1f} "
          f"at most; at most {max(one[1] for one in samples)} descriptors, {max(one[2] for one in samples)} threads")
    after = await idle_figures(server)
    check("descriptors and threads", after == before, f"{before} before, {after} after")
    for name in ("dsv4_preemptions_total", 'dsv4_prompt_tokens_cached_total{tier="ram"}',
                 'dsv4_prompt_tokens_cached_total{tier="disk"}'):
        value = await load.metric(server, name)
        check(f"{name} was reached", value > 0, f"{value:.0f}")
    found, wanted = [await load.metric(server, f"dsv4_prefix_{what}_total") for what in ("hits", "queries")]
    check("prefixes were found", found > 0, f"{found / wanted:.1%} of {wanted:.0f} prompt tokens, {server.cpu_seconds():.0f} s of processor time")
    if options.speculate:
        await check_drafts(server, options.speculate)


@contextlib.contextmanager
def a_server(options, *more):
    with tempfile.TemporaryDirectory() as folder:
        server = Server(options.binary, *OPTIONS, "--disk-cache", folder, *more)
        yield server, folder
        check("SIGTERM", server.stop() == 0, "status 0")


def main(options):
    global timeout
    timeout *= options.patience
    plain, more, without = None, (), ()
    if options.speculate:
        more, without = ("--speculate", options.speculate), ("--speculate", "off")
    if options.gpus:
        more, without = ("--gpus", options.gpus), ("--device", "cpu" if options.gpus.startswith("cpu") else "cuda")
    if without:
        with a_server(options, *without) as (server, _):
            plain = asyncio.run(ask_alone(server))
    with a_server(options, *more) as (server, folder):
        asyncio.run(soak(server, folder, options, plain))
    return finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--seconds", type=float, default=3 * 3600)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--patience", type=float, default=1)
    parser.add_argument("--sanitized", action="store_true")
    parser.add_argument("--requests", type=int)
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--speculate", choices=("off", "lookup", "mtp", "auto"))
    other.add_argument("--gpus")
    sys.exit(main(parser.parse_args()))
