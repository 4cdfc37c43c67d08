#!/usr/bin/env python3
"""Fault campaigns against the prefix cache of `dsv4 serve` (docs/spec/serving.md 10.4: 1, 2, 5 and 8), with the bundled
model. Ends with "N passed, N failed".

    tools/serve/cache_faults.py BINARY            500 kills, 1,000 damaged files, 10 minutes of overload (an hour)
    tools/serve/cache_faults.py BINARY --short    a few of each, for ./check
    tools/serve/cache_faults.py BINARY --campaign kill --jobs 8    500 kills, of servers side by side

kill      the server is killed while it writes; the next one finds no torn file, and every conversation that the one before
          had on the disk is a hit with the same answer
damage    a file of the stopped server is cut, or one bit of it flipped: the answer stays the same
full      every file is cut at 100 kB by the system: requests are answered, from host memory
overload  twice as many clients as fit the queue: only 200 and 429, and memory stays flat

Campaign 3 (clients that leave) is load.py's."""

import argparse
import collections
import concurrent.futures
import http.client
import json
import pathlib
import random
import resource
import signal
import sys
import tempfile
import time

from tally import check, finish
from server import Server

OPTIONS = ("--deterministic", "--context", "2048", "--max-batch", "2", "--prefix-checkpoints", "2", "--threads", "1",
           "--checkpoint-interval", "256")  # several units of a conversation


def ask(server, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response.status, json.loads(text)


def text_of(number):
    words = random.Random(number)
    places = ["mill", "river", "farm", "kite", "village", "boy", "girl", "sea", "morning"]
    looks = ["old", "new", "red"]
    return f"Story {number}." + "".join(
        f" The {words.choice(places)} by the {words.choice(places)} was {words.choice(looks)}." for _ in range(100))


def answer(server, number, tokens=8):
    """The answer's text, and how many tokens of the prompt were cached."""
    status, body = ask(server, "POST", "/v1/chat/completions",
                       {"messages": [{"role": "user", "content": text_of(number)}], "temperature": 0, "max_tokens": tokens})
    if status != 200:
        sys.exit(f"the server answered {status}: {body}")
    return body["choices"][0]["message"]["content"], body["usage"]["prompt_tokens_details"]["cached_tokens"]


def cache(server):
    return ask(server, "GET", "/v1/dsv4/cache")[1]


def wait_written(server):
    for _ in range(600):
        disk = cache(server)["disk"]
        if disk["waiting_writes"] == 0 and disk["entries"] > 0:
            return disk
        time.sleep(0.02)
    sys.exit(f"the server does not write: {disk}")


def disk_server(binary, folder, **how):
    return Server(binary, *OPTIONS, "--ram-cache", "0.05", "--disk-cache", str(folder), **how)


def kill_some(binary, number, seed):
    """Kills servers of one folder; what was found."""
    rng, found = random.Random(seed), collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        known = {}
        for round_number in range(number):
            begin = time.monotonic()
            server = disk_server(binary, folder)
            found["slowest start ms"] = max(found["slowest start ms"], int(1000 * (time.monotonic() - begin)))
            for one in rng.sample(sorted(known), min(2, len(known))):
                text, cached = answer(server, one)
                found["announced"] += 1
                found["missed"] += cached < known[one][1]
                found["wrong"] += text != known[one][0]
            found["torn"] += cache(server)["disk"]["bad_files"]
            fresh = 1000 * seed + round_number
            known[fresh] = answer(server, fresh)[0], answer(server, fresh)[1]  # and its cached tokens
            wait_written(server)
            with concurrent.futures.ThreadPoolExecutor(1) as pool:  # it is killed while it computes or writes this one
                interrupted = pool.submit(interrupt, server, 100000 * seed + round_number)
                time.sleep(rng.random() * 0.3)
                server.process.kill()
                server.process.wait()
                interrupted.result()
            found["kills"] += 1
    return found


def kills(binary, number, jobs):
    found = side_by_side(kill_some, binary, number, jobs)
    check(f"{found['kills']} kills", found["torn"] == found["missed"] == found["wrong"] == 0 < found["announced"],
          f"{found['torn']} torn files; of {found['announced']} announced conversations {found['missed']} missed, "
          f"{found['wrong']} other answers; slowest start {found['slowest start ms'] / 1000:.1f} s")


def side_by_side(campaign, binary, number, jobs):
    """Runs the campaign in as many folders, a share of the number in each; the sums of what they found, and of their
    slowest the most."""
    shares = [number // jobs + (job < number % jobs) for job in range(jobs)]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(lambda job: campaign(binary, shares[job], job + 1), range(jobs)))
    total = collections.Counter()
    for result in results:
        for key, value in result.items():
            total[key] = max(total[key], value) if key.startswith("slowest") else total[key] + value
    return total


def interrupt(server, number):
    try:
        answer(server, number)
    except (OSError, http.client.HTTPException, json.JSONDecodeError):
        pass  # the server is gone


def position_of(unit):
    """Tokens of the text up to the end of this unit."""
    return int.from_bytes(unit[96:104], "little")


def noticed(server):
    """Whether a damaged file is found; a request that waited too long for it is answered before."""
    for _ in range(100):
        if cache(server)["disk"]["bad_files"] > 0:
            return True
        time.sleep(0.1)
    return False


def damage_some(binary, number, seed):
    """Damages one of the files that a request needs, again and again; what was found. The damage has to be noticed, and
    the file is a miss with all that need it."""
    rng, found = random.Random(seed), collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        server = disk_server(binary, folder)
        right = answer(server, seed)[0]
        most = answer(server, seed)[1]
        wait_written(server)
        server.stop()
        for _ in range(number):
            needed = [path for path in pathlib.Path(folder).glob("*/*.dpc") if position_of(path.read_bytes()) <= most]
            path = rng.choice(needed)
            data = bytearray(path.read_bytes())
            position = position_of(data)
            place = rng.randrange(len(data))
            cut = rng.random() < 0.25
            if cut:
                del data[place:]
            else:
                data[place] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
            server = disk_server(binary, folder)
            text, cached = answer(server, seed)
            found["damaged"] += 1
            found["cut"] += cut
            found["wrong"] += text != right
            found["hits"] += cached >= position
            found["unnoticed"] += not noticed(server)
            found["files"] += len(needed)
            wait_written(server)
            server.stop()
    return found


def damage(binary, number, jobs):
    found = side_by_side(damage_some, binary, number, jobs)
    check(f"{found['damaged']} damaged files, {found['cut']} of them cut",
          found["wrong"] == found["hits"] == found["unnoticed"] == 0,
          f"{found['wrong']} other answers, {found['hits']} hits, {found['unnoticed']} unnoticed; "
          f"a request needed {found['files'] / found['damaged']:.1f} files")


def full(binary, requests):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with tempfile.TemporaryDirectory() as folder:
        server = disk_server(binary, folder, preexec_fn=limit, restore_signals=False)
        first = [answer(server, number) for number in range(requests)]
        again = [answer(server, number) for number in range(requests)]
        disk = cache(server)["disk"]
        check("full disk", [text for text, _ in first] == [text for text, _ in again] and disk["errors"] > 0
              and min(cached for _, cached in again) >= 256 and server.process.poll() is None,
              f"{2 * requests} answers, {disk['errors']} errors of the disk, {disk['entries']} files")
        check("SIGTERM with a full disk", server.stop() == 0, "status 0")


def overload(binary, seconds):
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "script.jsonl"
        script.write_text(json.dumps({"output": "tick ", "repeat": 20, "step_ms": 2}) + "\n")
        server = Server(binary, "--engine", f"script:{script}", "--max-batch", "8", "--max-queue", "8")

        def client(clients_end):
            times, other = [], []
            while time.monotonic() < clients_end:
                begin = time.monotonic()
                status, _ = ask(server, "POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Go"}]})
                (times if status == 200 else other).append(time.monotonic() - begin if status == 200 else status)
                if status != 200:
                    time.sleep(0.05)  # less than Retry-After
            return times, other

        def load_with(clients):
            with concurrent.futures.ThreadPoolExecutor(clients) as pool:
                results = list(pool.map(client, [time.monotonic() + seconds] * clients))
            return sorted(t for times, _ in results for t in times), [s for _, other in results for s in other]

        normal, _ = load_with(16)
        before = server.resident()
        busy, refused = load_with(32)
        grown = server.resident() / before - 1
        p99 = [times[int(0.99 * (len(times) - 1))] for times in (normal, busy)]
        check(f"overload for {seconds} s", set(refused) == {429} and p99[1] <= 1.5 * p99[0] + 0.05 and grown < 0.05,
              f"{len(busy)} answers, {len(refused)} refused with {set(refused)}, p99 {p99[0]:.2f} and {p99[1]:.2f} s, "
              f"memory {grown:+.1%}")
        server.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="servers that are killed or damaged side by side")
    parser.add_argument("--campaign", choices=["kill", "damage", "full", "overload"], action="append",
                        help="only this one; may be given again")
    options = parser.parse_args()
    binary, short, jobs = options.binary, options.short, options.jobs
    campaigns = {"kill": lambda: kills(binary, 5 if short else 500, jobs),
                 "damage": lambda: damage(binary, 5 if short else 1000, jobs),
                 "full": lambda: full(binary, 3 if short else 50),
                 "overload": lambda: overload(binary, 4 if short else 600)}
    for name in options.campaign or campaigns:
        campaigns[name]()
    return finish()


if __name__ == "__main__":
    sys.exit(main())
