"""Every shape of answers and events against the typed models of the newest OpenAI and Anthropic SDKs, parsed strictly: a
field that is required there must be there, of its type and with one of its words. The SDKs themselves accept anything, so
their own calls would not show a difference; clients in Rust, Go, Java or with strict Pydantic do. The same answers against
the published schemas: tests/server/service_schemas_test.cc.

Strict models of completions refuse what OpenAI's own server sends: finish_reason null in a chunk, the logprob null of the
first token of a prompt. Those two are passed over here."""

import json
import urllib.error
import urllib.request

import anthropic
import openai
import pydantic
from anthropic.types import Message, MessageTokensCount, ModelInfo, RawMessageStreamEvent
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from scenarios import *  # noqa: F403

NAME = f"types of openai {openai.__version__}, anthropic {anthropic.__version__}"
THINK = {"thinking": {"type": "enabled"}}
THINK_MESSAGES = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


def ask(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(scripted_url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()


def events(path, body):
    for line in ask(path, body | {"stream": True}).splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield line[len("data: "):]


def check(kind, text):
    try:
        pydantic.TypeAdapter(kind).validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise AssertionError(f"{first['loc']}: {first['msg']} ({error.error_count()} errors) in {text[:300]}") from None


def check_both(path, whole, event, bodies):
    for body in bodies:
        check(whole, ask(path, body))
        for text in events(path, body):
            check(event, text)


@scenario(NAME, "chat")
def _():
    def body(text, **more):
        return {"messages": user(text), **more}
    check_both("/v1/chat/completions", ChatCompletion, ChatCompletionChunk, [
        body("Hi"), body("Hi", n=2, logprobs=True, top_logprobs=3), body("ponder", logprobs=True, **THINK),
        body("weather", tools=[OPENAI_TOOL]), body("weather, thinking", tools=[OPENAI_TOOL], **THINK),
        body("forever", max_tokens=3), body("Hi", stop="there")])
    for text in events("/v1/chat/completions", body("Hi", stream_options={"include_usage": True})):
        check(ChatCompletionChunk, text)


@scenario(NAME, "completions")
def _():
    for body in ({"prompt": "Hi"}, {"prompt": ["Hi", "Hi"], "n": 2, "logprobs": 2}, {"prompt": "forever", "max_tokens": 3}):
        check(Completion, ask("/v1/completions", body))
        for text in events("/v1/completions", body):
            chunk = json.loads(text)
            for choice in chunk["choices"]:
                choice["finish_reason"] = choice["finish_reason"] or "stop"
            check(Completion, json.dumps(chunk))


@scenario(NAME, "messages")
def _():
    def body(text, **more):
        return {"max_tokens": 100, "messages": user(text), **more}
    # The stream's own type has no ping.
    bodies = [body("Hi"), body("ponder", **THINK_MESSAGES), body("weather", tools=[ANTHROPIC_TOOL]),
              body("weather, thinking", tools=[ANTHROPIC_TOOL], **THINK_MESSAGES), body("forever") | {"max_tokens": 3},
              body("Hi", stop_sequences=["there"])]
    for one in bodies:
        check(Message, ask("/v1/messages", one))
        for text in events("/v1/messages", one):
            if json.loads(text)["type"] != "ping":
                check(RawMessageStreamEvent, text)
    check(MessageTokensCount, ask("/v1/messages/count_tokens", body("Hi")))


@scenario(NAME, "responses")
def _():
    tool = {"type": "function", "name": "get", "parameters": SCHEMA}
    text = {"format": {"type": "json_schema", "name": "n", "schema": {"enum": [1, 2]}}}
    check_both("/v1/responses", Response, ResponseStreamEvent, [
        {"input": "Hi"}, {"input": "Hi", "instructions": "Be brief.", "metadata": {"run": "1"}},
        {"input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"input": "ponder", "reasoning": {"effort": "high"}},
        {"input": "weather, thinking", "reasoning": {"effort": "high"}, "include": ["reasoning.encrypted_content"],
         "tools": [tool]},
        {"input": "weather", "tools": [{"type": "custom", "name": "get"}]},
        {"input": "forever", "max_output_tokens": 3}, {"input": "json", "text": text, "max_output_tokens": 20}])


@scenario(NAME, "models")
def _():
    for model in json.loads(ask("/v1/models"))["data"]:
        check(Model, json.dumps(model))
        # A time is a string in JSON, which a strict parse of a datetime takes from JSON only.
        check(ModelInfo, json.dumps(model))


@scenario(NAME, "errors")
def _():
    def error_of(path, body):
        try:
            ask(path, body)
        except urllib.error.HTTPError as error:
            return error.read().decode()
        raise AssertionError(f"{path} took {body}")
    check(anthropic.types.ErrorResponse, error_of("/v1/messages", {"messages": 3, "max_tokens": 1}))
    check(anthropic.types.ErrorResponse, error_of("/v1/messages", {"model": "none", "messages": user("Hi"), "max_tokens": 1}))
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        check(openai.types.shared.ErrorObject, json.dumps(json.loads(error_of(path, {"temperature": 9}))["error"]))
