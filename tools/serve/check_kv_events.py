#!/usr/bin/env python3
"""KV events as a router reads them: with the structs of vLLM, by msgspec and pyzmq from PyPI.

    check_kv_events.py BINARY LIFE      LIFE: build/PRESET/bin/kv_events_life

A random life of a cache, of which a fifth of the batches is lost and asked for again, ends in an index that equals the
cache; the server's events name the tokens of its prompts; hostile frames change nothing."""

import json
import os
import random
import subprocess
import sys
import tempfile
import urllib.request

import msgpack
import msgspec
import zmq
from server import Server

TIERS = ("GPU", "CPU", "DISK")
END = (-1).to_bytes(8, "big", signed=True)
context = zmq.Context()


# The field layout of vllm/distributed/kv_events.py.
class KVCacheEvent(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    lora_name: str | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[int | bytes]
    medium: str | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


decoder = msgspec.msgpack.Decoder(KVEventBatch)


class Router:
    """A subscriber that keeps an index; it loses a share of what it gets, and requests it again."""

    def __init__(self, endpoint, replay, lost=0.0, topic=b""):
        self.blocks = {tier: {} for tier in TIERS}  # hash -> (parent, tokens)
        self.next, self.replays, self.events, self.stored, self.topic = 0, 0, 0, [], topic
        self.lost, self.random = lost, random.Random(5)
        self.subscriber = context.socket(zmq.SUB)
        self.subscriber.set_hwm(0)
        self.subscriber.connect(endpoint)
        self.subscriber.setsockopt(zmq.SUBSCRIBE, topic)
        # One request, many replies.
        self.dealer = context.socket(zmq.DEALER)
        self.dealer.setsockopt(zmq.RCVTIMEO, 10_000)
        self.dealer.connect(replay)

    def take(self, number, payload):
        if number < self.next:
            return
        assert number == self.next, (number, self.next)
        self.next += 1
        batch = decoder.decode(payload)
        assert msgpack.unpackb(payload)[0] == batch.ts and batch.data_parallel_rank == 0
        for event in batch.events:
            self.apply(event)

    def apply(self, event):
        self.events += 1
        if isinstance(event, AllBlocksCleared):
            for blocks in self.blocks.values():
                blocks.clear()
            return
        blocks = self.blocks[event.medium]
        if isinstance(event, BlockRemoved):
            for block in event.block_hashes:
                del blocks[block]
            return
        self.stored.append(event)
        assert event.lora_id is None and len(event.token_ids) == event.block_size * len(event.block_hashes)
        parent = event.parent_block_hash
        for i, block in enumerate(event.block_hashes):
            assert block not in blocks, block
            blocks[block] = parent, event.token_ids[i * event.block_size:(i + 1) * event.block_size]
            parent = block

    def catch_up(self):
        self.replays += 1
        self.dealer.send_multipart([b"", self.next.to_bytes(8, "big")])
        while True:
            empty, number, payload = self.dealer.recv_multipart()
            assert empty == b""
            if number == END:
                assert payload == b""
                return
            self.take(int.from_bytes(number, "big"), payload)

    def listen(self, milliseconds=300):
        """Until nothing comes for so long; then requests what it may have missed."""
        while self.subscriber.poll(milliseconds):
            topic, number, payload = self.subscriber.recv_multipart()
            assert topic == self.topic and len(number) == 8
            number = int.from_bytes(number, "big")
            if self.random.random() < self.lost:
                continue
            if number > self.next:
                self.catch_up()
            self.take(number, payload)
        self.catch_up()


def check_life(life, seed, events=1000):
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen([life, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*", str(events), str(seed), folder],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            ends = json.loads(process.stdout.readline())
            router = Router(ends["endpoint"], ends["replay"], lost=0.2)
            router.listen()
            cache = json.loads(process.stdout.readline())
            router.listen()
            for tier in TIERS:
                assert set(router.blocks[tier]) == set(cache[tier]), (seed, tier)
            assert router.events == cache["events"] >= events and router.replays > 1
            total = sum(len(blocks) for blocks in router.blocks.values())
            print(f"ok: life {seed}: {router.events} events in {router.next} batches, {router.replays} replays, "
                  f"{total} blocks equal")
        finally:
            process.stdin.close()
            process.wait(20)


def post(server, path, body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def check_server(binary):
    with tempfile.TemporaryDirectory() as folder:
        server = Server(binary, "--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "tcp://127.0.0.1:*",
                        "--kv-events-topic", "kv@pod-1@demo", "--ram-cache", "0.1", "--disk-cache", folder)
        ends = next(entry for entry in server.log if entry["event"] == "kv_events")
        router = Router(ends["endpoint"], ends["replay"], topic=b"kv@pod-1@demo")
        body = {"messages": [{"role": "user", "content": "A story of a village, please. " * 40}], "max_tokens": 5,
                "temperature": 0}
        post(server, "/v1/chat/completions", body)
        prompt = post(server, "/v1/chat/completions/render", body)["token_ids"]
        router.listen()
        whole = len(prompt) // 128 * 128
        assert whole >= 256
        first = router.stored[0]
        assert first.medium == "GPU" and first.parent_block_hash is None and first.block_size == 128
        published = [token for event in router.stored if event.medium == "GPU" for token in event.token_ids]
        assert published[:whole] == prompt[:whole]
        for tier in TIERS:
            assert len(router.blocks[tier]) >= whole // 128, (tier, len(router.blocks[tier]))
        before = router.events
        post(server, "/v1/chat/completions", body | {"cache_salt": "mine", "messages": [
            {"role": "user", "content": "A secret of one client only. " * 40}]})
        router.listen()
        assert router.events == before, "texts of a salt are published"
        hostile(ends["replay"])
        post(server, "/v1/dsv4/cache/drop", {})
        router.listen()
        assert not any(router.blocks.values())
        metrics = urllib.request.urlopen(server.url + "/metrics").read().decode()
        lines = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
        assert int(lines["dsv4_kv_events_total"]) == router.events and lines["dsv4_kv_events_lost_total"] == "0"
        config = [line for line in lines if line.startswith("vllm:cache_config_info{")]
        assert len(config) == 1 and 'block_size="128"' in config[0] and 'num_gpu_blocks="' in config[0], config
        assert server.stop() == 0
    print("ok: the server's events are of its prompts; salts are not published; hostile frames change nothing")


def hostile(endpoint):
    noise = random.Random(7)
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(endpoint)
    for _ in range(300):
        socket.send_multipart([noise.randbytes(noise.choice((0, 1, 7, 8, 9, 1000))) for _ in range(noise.randint(1, 6))])
    socket.send_multipart([b"x" * 100_000])  # over the limit: the connection ends
    socket.close()


def check_errors(binary):
    def error(*options):
        done = subprocess.run([binary, "serve", "demo", "--port", "0", *options], capture_output=True, text=True,
                              timeout=60)
        assert done.returncode != 0
        return done.stderr.strip().splitlines()[-1]
    assert "want an endpoint to listen at" in error("--kv-events", "nonsense")
    assert "give --kv-events" in error("--kv-events-replay", "tcp://127.0.0.1:*")
    assert "--prefix-checkpoints 0" in error("--kv-events", "tcp://127.0.0.1:*", "--prefix-checkpoints", "0")
    print("ok: options that cannot hold")


def main():
    binary, life = sys.argv[1:3]
    for seed in range(int(os.environ.get("DSV4_CAMPAIGN", "3"))):
        check_life(life, seed)
    check_server(binary)
    check_errors(binary)


if __name__ == "__main__":
    main()
