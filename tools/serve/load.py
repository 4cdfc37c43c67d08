#!/usr/bin/env python3
"""Loads `dsv4 serve` and checks that it stays well: many open streams, clients that leave at random places, slow
connections, and the server's own time per token. Ends with "N passed, N failed".

    tools/serve/load.py BINARY            the whole: 1,000 streams, 10,000 requests, 10,000 slow connections (minutes)
    tools/serve/load.py BINARY --short    a tenth to a hundredth of it, for ./check (seconds)

Clients are asyncio sockets of this process, without a library. Limits: resident memory after a load is at most 1 % (and
2 MiB) above that after the same load before it; no page of the cache stays taken; /health answers within 100 ms; the
engine is idle when all clients are gone. The short form takes the median of the times of /health, the whole the largest."""

import argparse
import asyncio
import json
import random
import resource
import socket
import sys
import tempfile
import time

from server import Server, write_script
from tally import check, finish

SCRIPT = [{"match": "forever", "output": "tick ", "repeat": 100000, "step_ms": 50},
          {"match": "fast", "output": "tick ", "repeat": 100000},
          {"match": "some", "output": "tick ", "repeat": 30, "step_ms": 1},
          {"output": "Hello there."}]
TOKEN = b'"delta":{"content":"'  # of an event with a token
HEALTH_SECONDS = 0.1


def request_bytes(text, stream=True, **fields):
    body = json.dumps({"messages": [{"role": "user", "content": text}], "stream": stream, **fields}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" \
           "Connection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def get(server, path):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return answer


async def metric(server, name):
    for line in (await get(server, "/metrics")).splitlines():
        if line.startswith(name + " "):
            return float(line.split()[-1])
    raise KeyError(name)


def probe(port):
    """Seconds of five requests to /health, by a process of its own: this one is busy with its clients."""
    times = []
    for _ in range(5):
        begin = time.monotonic()
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answered = b" 200 " in connection.recv(1 << 16).split(b"\r\n", 1)[0]
        times.append(time.monotonic() - begin if answered else float("inf"))
    print(json.dumps(times))


async def health_times(server):
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, "--probe", str(server.port),
                                                   stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return json.loads(out)


async def wait_idle(server, name):
    for _ in range(200):
        busy = await metric(server, "dsv4_requests_running") + await metric(server, "dsv4_requests_waiting")
        if busy == 0 and await metric(server, "dsv4_connections") <= 1:
            break
        await asyncio.sleep(0.1)
    pages = await metric(server, "dsv4_kv_usage_ratio")
    check(f"{name}: idle afterwards", busy == 0 and pages == 0, f"{busy:.0f} requests, {pages:.2%} of the pages in use")


async def open_stream(server, text, **fields):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request_bytes(text, **fields))
    await reader.readuntil(TOKEN)
    return reader, writer


async def close_all(connections):
    for _, writer in connections:
        writer.transport.abort()
    await asyncio.sleep(0.2)


async def streams(server, number, short):
    """Many streams at a time, all of which get tokens."""
    async def round_of():
        begin = time.monotonic()
        connections = await asyncio.gather(*(open_stream(server, "forever") for _ in range(number)))
        opened = time.monotonic() - begin
        health = sorted(await health_times(server))[2 if short else 4]
        for reader, _ in connections:  # every one still moves
            await reader.readuntil(TOKEN)
        await close_all(connections)
        await wait_idle(server, f"{number} streams")
        return opened, health, server.resident()
    await round_of()
    _, _, before = await round_of()
    opened, health, after = await round_of()
    check(f"{number} streams: /health", health < HEALTH_SECONDS, f"{health * 1e3:.1f} ms, all had a token in {opened:.1f} s")
    check_memory(f"{number} streams", before, after)


def check_memory(name, before, after):
    mib = 1 << 20
    limit = max(before * 0.01, 2 * mib)
    check(f"{name}: memory", after - before <= limit, f"{before / mib:.1f} MiB before, {after / mib:.1f} MiB after")


async def one_that_leaves(server, random_of, text):
    """Sends a random share of a request, or reads a random share of its answer, and leaves."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        data = request_bytes(text, stream=random_of.random() < 0.7, max_tokens=20)
        if random_of.random() < 0.3:
            writer.write(data[:random_of.randrange(len(data))])
            await asyncio.sleep(random_of.random() * 0.01)
        else:
            writer.write(data)
            left = random_of.randrange(4000)
            while left > 0:
                piece = await asyncio.wait_for(reader.read(left), 30)
                left -= len(piece)
                if not piece or b"[DONE]" in piece:
                    break
        writer.transport.abort()
    except (ConnectionError, asyncio.TimeoutError):
        pass


async def disconnects(server, number, at_a_time, text):
    random_of = random.Random(1)

    async def load(count):
        left = iter(range(count))

        async def client():
            for _ in left:
                await one_that_leaves(server, random_of, text)
        await asyncio.gather(*(client() for _ in range(at_a_time)))
    begin = time.monotonic()
    await load(number // 2)
    await wait_idle(server, f"{number // 2} clients that leave")
    before, threads = server.resident(), server.threads()
    await load(number - number // 2)
    await wait_idle(server, f"{number} clients that leave")
    spent = time.monotonic() - begin
    check_memory(f"{number} clients that leave ({number / spent:.0f} a second)", before, server.resident())
    check(f"{number} clients that leave: threads", server.threads() == threads, f"{threads} and {server.threads()}")


async def slow(server, number, short):
    """Connections that send a byte of a head now and then, while /health and a chat answer."""
    begin = time.monotonic()
    connections = []
    for first in range(0, number, 500):
        connections += await asyncio.gather(*(asyncio.open_connection("127.0.0.1", server.port)
                                              for _ in range(min(500, number - first))))
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
    times, chats = [], 0
    for turn in range(4):
        for _, writer in connections:
            if not writer.transport.is_closing():
                writer.write(head if turn == 0 else b"x")
        times += await health_times(server)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request_bytes("Hi", stream=False))
        chats += b" 200 " in await asyncio.wait_for(reader.readline(), 10)
        writer.close()
    times.sort()
    open_now = await metric(server, "dsv4_connections")
    # A short run shares its machine with other tests, which also take the time of this process.
    decisive = times[len(times) // 2] if short else times[-1]
    check(f"{number} slow connections: /health", decisive < HEALTH_SECONDS and chats == 4,
          f"median {times[len(times) // 2] * 1e3:.1f} ms, largest {times[-1] * 1e3:.1f} ms, {open_now:.0f} connections open "
          f"after {time.monotonic() - begin:.1f} s, {chats} of 4 chats answered")
    await close_all(connections)
    await wait_idle(server, f"{number} slow connections")


async def overhead(server, clients, tokens):
    """CPU time of the whole server per streamed token, with an engine that costs nothing. tokens: of each client."""
    async def read():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request_bytes("fast", max_tokens=tokens))
        size = 0
        while piece := await reader.read(1 << 16):  # to the end of the answer, which closes the connection
            size += len(piece)
        writer.close()
        return size
    cpu, begin = server.cpu_seconds(), time.monotonic()
    sizes = await asyncio.gather(*(read() for _ in range(clients)))
    cpu, spent = server.cpu_seconds() - cpu, time.monotonic() - begin
    await wait_idle(server, f"overhead, {clients} clients")
    micro = cpu / (clients * tokens) * 1e6
    check(f"overhead with {clients} clients", micro < 200 and min(sizes) > tokens,
          f"{micro:.1f} us of CPU a token, {clients * tokens / spent:.0f} tokens/s with this client")


async def main(options):
    with tempfile.TemporaryDirectory() as folder:
        script = write_script(folder, SCRIPT)
        server = Server(options.binary, "--engine", f"script:{script}", "--max-batch", "1024", "--max-connections", "12000",
                        "--max-queue", "2000")
        await streams(server, 1000 // (10 if options.short else 1), options.short)
        await disconnects(server, 10000 // (20 if options.short else 1), 50, "some")
        for clients in (1, 16) if options.short else (1, 16, 64):
            await overhead(server, clients, 20000 // clients if options.short else 20000)
        await slow(server, 10000 // (20 if options.short else 1), options.short)
        check("SIGTERM", server.stop() == 0, "status 0")
    # Pages of a real cache.
    server = Server(options.binary, "--max-batch", "8", "--context", "2048", "--max-queue", "500")
    await disconnects(server, 2000 // (40 if options.short else 1), 20, "A story of a farm")
    check("SIGTERM", server.stop() == 0, "status 0")
    return finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", nargs="?")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--probe", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        sys.exit(probe(options.probe))
    if not options.binary:
        parser.error("want BINARY")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sys.exit(asyncio.run(main(options)))
