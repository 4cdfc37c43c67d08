#!/usr/bin/env python3
"""Floods of `dsv4 serve` with the bundled model, and what they leave to others: the rate of a stream that runs beside
each, as a share of the rate beside as many clients that chat, the time of a short chat, and resident memory after it.
Ends with "N passed, N failed".

    tools/serve/floods.py BINARY [--seconds 10]

grammars two clients with ever new ambiguous grammars, each of which is refused once it costs too much; and four whose
         grammar stays within the limits, compared with four plain ones
texts    six clients that send the longest texts that /v1/dsv4/tokenize takes
large    four clients that send bodies of 12 MiB, most of which is a field without effect
choices  one client that wants 16 choices of each of 8 prompts; beside it the stream is one of the sequences of a
         step, so its rate is compared with that beside 15 chats, as many as the request may run
echo     one client that scores prompts of 8,000 tokens; compared with such prompts that are not scored

A machine that does other work at the time makes the numbers wrong: run it alone."""

import argparse
import asyncio
import json
import sys
import time

import load
from tally import check, finish
from server import Server

LEAST_SHARE = 0.6
MOST_CHAT_SECONDS = 2.0
MOST_MEMORY = 64 << 20  # more than before the flood
KEPT_GRAMMARS = 256 << 20  # compiled ones are kept up to so much


def post(path, body):
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


async def answer_to(server, request):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(request)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def repeat(server, request, answers):
    """`request`: bytes, or what makes them anew each time."""
    while True:
        answers.append((await answer_to(server, request() if callable(request) else request))[9:12].decode())


def chat(words, **more):
    return post("/v1/chat/completions", {"messages": [{"role": "user", "content": words}], **more})


async def beside(server, clients, request, seconds):
    """Tokens a second of a stream while so many clients repeat the request, the longest of some short chats, and the
    statuses that the clients got."""
    answers, times = [], []
    reader, writer = await load.open_stream(server, "A story", max_tokens=30000, ignore_eos=True)
    flood = [asyncio.create_task(repeat(server, request, answers)) for _ in range(clients)]
    tokens, end = 0, time.monotonic() + seconds

    async def short_chats():
        while time.monotonic() < end:
            begin = time.monotonic()
            await answer_to(server, chat("Hi", max_tokens=1))
            times.append(time.monotonic() - begin)
            await asyncio.sleep(0.5)
    chats = asyncio.create_task(short_chats())
    while time.monotonic() < end:
        tokens += (await reader.read(1 << 16)).count(load.TOKEN)
    await chats
    for task in flood:
        task.cancel()
    writer.transport.abort()
    await asyncio.gather(*flood, return_exceptions=True)
    return tokens / seconds, max(times), {status: answers.count(status) for status in sorted(set(answers))}


def constrained(grammar, **more):
    return chat("Hi", structured_outputs={"grammar": grammar}, **more)


def ambiguous_grammars():
    """Grammars that read a text in a number of ways that grows exponentially; no two alike, so that none is cached."""
    numbers = iter(range(10 ** 9))
    return lambda: constrained('root ::= s\ns ::= . s s s s | . s s s | . s s | . s | . | "J_' + str(next(numbers)) + '"')


def repetitive_grammars():
    numbers = iter(range(10 ** 9))
    return lambda: constrained("root ::= x x x x x x x x x x x x\nx ::= [a-z ] x x | [a-z ] x | [a-z ] | \"Q" +
                               str(next(numbers)) + '"', ignore_eos=True, max_tokens=300)


def long_prompts():
    """As long as those of the echo, and never found in the prefix cache."""
    numbers = iter(range(10 ** 9))
    return lambda: post("/v1/completions", {"prompt": "b a " * 4000, "max_tokens": 1, "cache_salt": f"salt {next(numbers)}"})


async def flood(server, name, clients, request, plain_clients, seconds, plain_request=None, most_memory=MOST_MEMORY):
    before = server.resident()
    plain_request = plain_request or chat("A story of a farm", max_tokens=20)
    plain, _, _ = await beside(server, plain_clients, plain_request, seconds)
    rate, slowest, statuses = await beside(server, clients, request, seconds)
    await asyncio.sleep(8)  # memory goes back when the server is idle
    check(f"{name}: the stream", rate >= LEAST_SHARE * plain,
          f"{rate:.1f} tokens a second, {plain:.1f} beside {plain_clients} plain ones; answers {statuses}")
    check(f"{name}: a short chat", slowest <= MOST_CHAT_SECONDS, f"{slowest:.2f} s at most")
    after, mib = server.resident(), 1 << 20
    check(f"{name}: memory", after - before <= most_memory, f"{before / mib:.0f} MiB before, {after / mib:.0f} MiB after")


async def main(options):
    server = Server(options.binary, "--max-batch", "16")
    await answer_to(server, chat("warm up", max_tokens=20))
    text = post("/v1/dsv4/tokenize", {"prompt": "a b " * 16000})
    large = chat("Hi", max_tokens=1, metadata={"a": "x" * (12 << 20)})
    choices = post("/v1/completions", {"prompt": ["Once"] * 8, "n": 16, "max_tokens": 60, "ignore_eos": True})
    echo = post("/v1/completions", {"prompt": "a b " * 4000, "max_tokens": 1, "echo": True, "logprobs": 5})
    await flood(server, "grammars", 2, ambiguous_grammars(), 2, options.seconds, most_memory=KEPT_GRAMMARS)
    long_chat = chat("A story of a farm", max_tokens=300, ignore_eos=True)
    await flood(server, "long grammars", 4, repetitive_grammars(), 4, options.seconds, long_chat, KEPT_GRAMMARS)
    await flood(server, "texts", 6, text, 6, options.seconds)
    await flood(server, "large", 4, large, 4, options.seconds)
    await flood(server, "choices", 1, choices, 15, options.seconds)
    await flood(server, "echo", 1, echo, 1, options.seconds, long_prompts())
    check("SIGTERM", server.stop() == 0, "status 0")
    return finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--seconds", type=float, default=10)
    sys.exit(asyncio.run(main(parser.parse_args())))
