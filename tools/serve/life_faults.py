#!/usr/bin/env python3
"""Fault campaigns against the life of `dsv4 serve` (docs/spec/serving.md 10.4: 4, 6 and 7). Ends with "N passed,
N failed".

    tools/serve/life_faults.py BINARY            100 SIGTERMs, 100 faults, two minutes of storms
    tools/serve/life_faults.py BINARY --short    a few of each, for ./check
    tools/serve/life_faults.py BINARY storm      one of them: terminate, fault, storm

terminate  SIGTERM at a random moment of a random load: every answer that could end within --drain-s is whole, longer ones
           end with an error event, requests that wait get 503, /ready gets 503, and the exit status is 0
fault      a step of the engine throws under load: every request that runs gets an error or 500, the others 5xx, none a cut
           answer, /ready 503, and the exit status is 70
storm      the clock jumps by years, a thousand signals a second interrupt system calls, and the file of keys changes or
           breaks with each: answers stay whole, a key that stays is always accepted, one that goes is refused

Campaign 3 (clients that leave) is load.py's, 1, 2, 5 and 8 are cache_faults.py's."""

import argparse
import asyncio
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import load
from load import request_bytes
from tally import check, finish
from server import Server, write_script

TICKS = 100  # of a whole answer; a tick is two tokens
SCRIPT = [{"match": "forever", "output": "tick ", "repeat": 100000, "step_ms": 5},
          {"match": "fault", "output": "tick ", "repeat": TICKS, "step_ms": 2, "fault_after": 20},
          {"output": "tick ", "repeat": TICKS, "step_ms": 2}]
DRAIN_SECONDS = 5  # a request takes less than half of it



class Answer:
    """What one request got: `kind` is whole, a status, none (no byte), error (an error event before the first token),
    ended (one after it), or cut."""

    def __init__(self, data, stream):
        head, _, body = data.partition(b"\r\n\r\n")
        self.status = int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/1.1 ") else 0
        if self.status != 200:
            self.kind = str(self.status) if self.status else "none"
        elif b'{"error":' in body:
            self.kind = "ended" if b"ick" in body else "error"
        elif stream:
            self.kind = "whole" if body.count(b"ick") == TICKS and b"[DONE]" in body and body.endswith(b"0\r\n\r\n") else "cut"
        else:
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            self.kind = "whole" if len(body) == length and body.count(b"ick") == TICKS else "cut"


async def ask(port, text, stream, key=None):
    """The answer to one request; a connection that is refused or reset before any byte is "none"."""
    data = b""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        request = request_bytes(text, stream=stream)
        if key:
            request = request.replace(b"\r\n", f"\r\nx-api-key: {key}\r\n".encode(), 1)
        writer.write(request)
        while piece := await reader.read(1 << 16):
            data += piece
        writer.close()
    except ConnectionError:
        pass
    return Answer(data, stream)


async def ready_status(reader, writer):
    """Of a connection that was open before: new ones are refused by then."""
    try:
        writer.write(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        data = await asyncio.wait_for(reader.read(1 << 16), 10)
        return int(data.split(b" ", 2)[1]) if data else 0
    except ConnectionError:
        return 0


def tally(answers):
    kinds = {}
    for answer in answers:
        kinds[answer.kind] = kinds.get(answer.kind, 0) + 1
    return kinds


async def exit_status(server):
    return await asyncio.to_thread(server.process.wait, 60)


async def one_end(binary, script, rng):
    """One server, ended at a random moment. Returns what is wrong."""
    endless = rng.random() < 0.2
    drain = 1 if endless else DRAIN_SECONDS
    slots = rng.randrange(2, 16)
    server = Server(binary, "--engine", f"script:{script}", "--max-batch", str(slots), "--drain-s", str(drain))
    idle = await asyncio.open_connection("127.0.0.1", server.port)
    running = [asyncio.create_task(ask(server.port, "go", rng.random() < 0.7)) for _ in range(rng.randrange(1, slots))]
    if endless:
        running.append(asyncio.create_task(ask(server.port, "forever", True)))
    while sum(task.done() for task in running) + await load.metric(server, "dsv4_requests_running") < len(running):
        await asyncio.sleep(0.005)
    more = [asyncio.create_task(ask(server.port, "go", rng.random() < 0.7)) for _ in range(rng.randrange(40))]
    await asyncio.sleep(rng.random() * 0.3)
    server.process.send_signal(signal.SIGTERM)
    late = [asyncio.create_task(ask(server.port, "go", True)) for _ in range(5)]
    await asyncio.sleep(0.05)
    ready = await ready_status(*idle)
    idle[1].close()
    first, rest, last = [await asyncio.gather(*tasks) for tasks in (running, more, late)]
    status = await exit_status(server)
    # What has begun is whole, unless it needs longer than the server has; what waits gets 503.
    begun = {"whole", "ended", "503"} if endless else {"whole"}  # 503: cut, and not a stream
    fine = set(tally(first)) <= begun and set(tally(rest)) <= begun | {"503", "error", "none"}
    fine = fine and set(tally(last)) <= {"503", "error", "none"} and (not endless or first[-1].kind == "ended")
    # 0: the server had ended already.
    fine = fine and ready in (503, 0) and status == 0
    return tally(first + rest + last), None if fine else f"{tally(first)} {tally(rest)} {tally(last)} ready {ready}, {status}"


async def repeat(what, one, binary, script, number, seed):
    """Runs `one` so often; each gives the counts of its answers, and what was wrong or None."""
    rng, bad, kinds = random.Random(seed), [], {}
    for _ in range(number):
        tallied, wrong = await one(binary, script, rng)
        for kind, count in tallied.items():
            kinds[kind] = kinds.get(kind, 0) + count
        if wrong:
            bad.append(wrong)
    check(f"{number} {what}", not bad, f"answers {kinds}, wrong: {bad[:3]}")


async def terminate(binary, script, number):
    await repeat("SIGTERMs", one_end, binary, script, number, 4)


async def one_fault(binary, script, rng):
    slots = rng.randrange(2, 16)
    server = Server(binary, "--engine", f"script:{script}", "--max-batch", str(slots))
    idle = await asyncio.open_connection("127.0.0.1", server.port)
    tasks = [asyncio.create_task(ask(server.port, "go", rng.random() < 0.7)) for _ in range(rng.randrange(1, 40))]
    await asyncio.sleep(rng.random() * 0.05)
    faulty = asyncio.create_task(ask(server.port, "fault", rng.random() < 0.5))
    answer, others = await faulty, await asyncio.gather(*tasks)
    ready = await ready_status(*idle)
    idle[1].close()
    status = await exit_status(server)
    fine = answer.kind in ("500", "ended", "error", "503")
    fine = fine and set(tally(others)) <= {"whole", "500", "503", "ended", "error"}
    fine = fine and ready in (503, 0) and status == 70
    return tally(others + [answer]), None if fine else f"{answer.kind} {tally(others)} ready {ready}, status {status}"


async def faults(binary, script, number):
    await repeat("faults of the engine", one_fault, binary, script, number, 6)


# Moves the clock of the day by what a file says; no other program sees it.
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static volatile long* offset(void) {
  static volatile long* place;
  if (place == 0) place = mmap(0, 4096, PROT_READ, MAP_SHARED, open(getenv("CLOCK_OFFSET"), O_RDONLY), 0);
  return place;
}
int clock_gettime(clockid_t id, struct timespec* out) {
  static int (*real)(clockid_t, struct timespec*);
  if (real == 0) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int status = real(id, out);
  if (id == CLOCK_REALTIME) out->tv_sec += *offset();
  return status;
}
time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != 0) *out = now.tv_sec;
  return now.tv_sec;
}
int gettimeofday(struct timeval* out, void* zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return 0;
}
"""


def clock_library(folder):
    """The environment under which the clock jumps, and the file that moves it; nothing without a compiler."""
    source, library, offset = folder / "clock.c", folder / "clock.so", folder / "offset"
    source.write_text(CLOCK)
    offset.write_bytes(bytes(4096))
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return {}, offset
    return {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(offset)}, offset


async def storm(binary, script, folder, seconds):
    rng, year = random.Random(7), 365 * 86400
    keys = folder / "keys"
    stays, goes = "stays:a-key-that-stays\n", "goes:a-key-that-goes\n"
    keys.write_text(stays)
    environment, offset = clock_library(folder)
    server = Server(binary, "--engine", f"script:{script}", "--max-batch", "16", "--api-key-file", str(keys),
                    environment=environment)
    threads, end, answers, jumps, signals = server.threads(), time.monotonic() + seconds, [], 0, 0

    async def client():
        while time.monotonic() < end:
            answers.append(await ask(server.port, "go", rng.random() < 0.7, "a-key-that-stays"))

    async def storms():
        nonlocal jumps, signals
        while time.monotonic() < end:
            with open(offset, "r+b") as file:
                file.write(rng.randrange(-20 * year, 20 * year).to_bytes(8, "little", signed=True))
            jumps += 1
            new = folder / "keys.new"
            new.write_text(rng.choice([stays, stays + goes, "no key here", "", stays + "x:\n"]))
            new.rename(keys)
            for _ in range(50):
                server.process.send_signal(signal.SIGHUP)
                signals += 1
                await asyncio.sleep(0.001)
    await asyncio.gather(storms(), *(client() for _ in range(24)))
    wrong = []
    for text, expected in ((stays + goes, "whole"), (stays, "401"), ("", "401"), (stays + goes, "whole")):
        keys.write_text(text)  # a file without keys is refused: those of before stay
        server.process.send_signal(signal.SIGHUP)
        await asyncio.sleep(0.3)
        kind = (await ask(server.port, "go", False, "a-key-that-goes")).kind
        if kind != expected:
            wrong.append(f"{text!r}: {kind}")
    check(f"storm of {seconds} s", set(tally(answers)) == {"whole"} and not wrong and server.threads() == threads,
          f"answers {tally(answers)}, {jumps if environment else 'no'} jumps of the clock, {signals} signals, keys: {wrong}")
    check("SIGTERM after the storm", server.stop() == 0, "status 0")


async def main(options):
    short = options.short
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        script = write_script(folder, SCRIPT)
        wanted = options.campaigns or ["terminate", "fault", "storm"]
        if "terminate" in wanted:
            await terminate(options.binary, script, 3 if short else 100)
        if "fault" in wanted:
            await faults(options.binary, script, 3 if short else 100)
        if "storm" in wanted:
            await storm(options.binary, script, folder, 3 if short else 120)
    return finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("campaigns", nargs="*", choices=["terminate", "fault", "storm", []])
    parser.add_argument("--short", action="store_true")
    sys.exit(asyncio.run(main(parser.parse_args())))
