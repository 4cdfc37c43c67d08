#!/usr/bin/env python3
"""A dsv4 server as a worker of NVIDIA Dynamo: its frontend makes prompts into token ids, routes them by the prefixes that
workers have, and makes the ids of answers into text. This worker sends each request to a dsv4 server beside it.

    dsv4 serve MODEL --port 8000 --kv-events tcp://127.0.0.1:5557 &
    python3 deploy/dynamo/dsv4_dynamo.py --model MODEL --kv-events tcp://127.0.0.1:5557
    python3 -m dynamo.frontend

    request of Dynamo    token_ids, sampling_options, stop_conditions
      -> POST /v1/completions of dsv4: prompt = the ids, streamed, with the ids of the answer
    chunk for Dynamo     token_ids, index, and at the end finish_reason and completion_usage

It has the engine contract of Dynamo 1.6 (dynamo.common.backend.LLMEngine); the package is ai-dynamo. Not here: images, LoRA,
log-probabilities, several choices of a request, prefill and decode on different workers.
"""

import argparse
import json

import aiohttp
from dynamo.common.backend import EngineConfig, LLMEngine, LlmRegistration, WorkerConfig
from dynamo.common.backend.publisher import ZmqSource

BLOCK = 128  # tokens of a block in KV events (docs/clusters.md)

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed")
STOPPING = ("max_tokens", "min_tokens", "stop", "ignore_eos")


def given(options, names):
    return {name: options[name] for name in names if options.get(name) is not None}


def body_of(request, model):
    """The completion of dsv4 that a request of Dynamo wants."""
    sampling, stopping = request.get("sampling_options") or {}, request.get("stop_conditions") or {}
    if (sampling.get("n") or 1) != 1:
        raise ValueError(f"{sampling['n']} choices of a request: this worker gives one")
    body = {"model": model, "prompt": list(request["token_ids"]), "stream": True, "return_token_ids": True,
            "stream_options": {"include_usage": True}}
    body |= given(sampling, SAMPLING) | given(stopping, STOPPING)
    stop_ids = stopping.get("stop_token_ids") or stopping.get("stop_token_ids_hidden")
    if stop_ids:
        body["stop_token_ids"] = list(stop_ids)
    return body


async def events_of(lines):
    """The JSON of each event of a stream of server-sent events, until [DONE]."""
    async for line in lines:
        text = line.decode().strip()
        if text == "data: [DONE]":
            return
        if text.startswith("data: "):
            yield json.loads(text[len("data: "):])


async def chunks_of(events):
    """Chunks for Dynamo. The one that ends the answer comes last, with the usage that dsv4 sends after it."""
    last, usage = None, None
    async for event in events:
        if "error" in event:
            raise RuntimeError(event["error"].get("message", "dsv4 ended the answer"))
        usage = event.get("usage") or usage
        for choice in event.get("choices", ()):
            chunk = {"token_ids": choice.get("token_ids") or [], "index": 0}
            if choice.get("finish_reason"):
                last = chunk | {"finish_reason": choice["finish_reason"]}
            elif chunk["token_ids"]:
                yield chunk
    if last is None:
        raise RuntimeError("dsv4 ended its answer without a reason")
    if usage:
        last["completion_usage"] = given(usage, ("prompt_tokens", "completion_tokens", "total_tokens"))
    yield last


class Dsv4Engine(LLMEngine):
    def __init__(self, args):
        self.args = args
        self.session = None
        self.model = None  # its name in requests

    @classmethod
    async def from_args(cls, argv=None):
        parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
        parser.add_argument("--url", default="http://127.0.0.1:8000", help="the dsv4 server")
        parser.add_argument("--key", help="its API key")
        parser.add_argument("--model", required=True, help="folder or ORG/NAME whose tokenizer the frontend reads")
        parser.add_argument("--served-model-name", help="name in requests (default: --model)")
        parser.add_argument("--kv-events", help="as the server's --kv-events, to route by prefixes")
        parser.add_argument("--namespace", default="dynamo")
        parser.add_argument("--component", default="dsv4")
        parser.add_argument("--endpoint", default="generate")
        parser.add_argument("--discovery-backend", default="etcd", help="etcd, kubernetes, file or mem (%(default)s)")
        parser.add_argument("--request-plane", default="tcp")
        parser.add_argument("--event-plane")
        args = parser.parse_args(argv)
        return cls(args), WorkerConfig(
            namespace=args.namespace, component=args.component, endpoint=args.endpoint, model_name=args.model,
            served_model_name=args.served_model_name or args.model, endpoint_types="chat,completions",
            discovery_backend=args.discovery_backend, request_plane=args.request_plane, event_plane=args.event_plane,
            enable_kv_routing=args.kv_events is not None)

    async def start(self, worker_id):
        headers = {"Authorization": f"Bearer {self.args.key}"} if self.args.key else {}
        self.session = aiohttp.ClientSession(self.args.url, headers=headers, timeout=aiohttp.ClientTimeout(total=None),
                                             connector=aiohttp.TCPConnector(limit=0), read_bufsize=1 << 20)
        async with self.session.get("/v1/models") as answer:
            answer.raise_for_status()
            model = (await answer.json())["data"][0]
        self.model = model["id"]
        return EngineConfig(model=self.args.model, served_model_name=self.args.served_model_name or self.args.model,
                            llm=LlmRegistration(context_length=model["max_model_len"], kv_cache_block_size=BLOCK))

    async def generate(self, request, context):
        # A client that leaves ends the connection, and with it the request in dsv4.
        async with self.session.post("/v1/completions", json=body_of(request, self.model)) as answer:
            if answer.status != 200:
                raise RuntimeError(f"dsv4: {answer.status} {(await answer.text())[:500]}")
            async for chunk in chunks_of(events_of(answer.content)):
                if context.is_stopped():
                    yield {"token_ids": [], "index": 0, "finish_reason": "cancelled"}
                    return
                yield chunk

    async def kv_event_sources(self):
        return [ZmqSource(self.args.kv_events)] if self.args.kv_events else []

    async def cleanup(self):
        if self.session is not None:
            await self.session.close()


if __name__ == "__main__":
    from dynamo.common.backend.run import run

    run(Dsv4Engine)
