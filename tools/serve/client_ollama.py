"""The client of Ollama: chat, generate, streams, tools, thinking, formats, what the models are."""

import asyncio
import importlib.metadata
import json

import ollama
import pydantic
from scenarios import *  # noqa: F403

NAME = f"ollama {importlib.metadata.version('ollama')}"
client, model = ollama.Client(scripted_url), ollama.Client(model_url)


def chat(text, **more):
    return client.chat("demo", user(text), **more)


@scenario(NAME, "plain")
def _():
    answer = chat("Hi")
    assert answer.message.content == PLAIN and answer.done and answer.done_reason == "stop", answer
    assert answer.prompt_eval_count > 0 and answer.eval_count > 0 and answer.total_duration > 0, answer
    assert client.generate("demo", "Hi").response == PLAIN
    assert client.generate("demo:latest", "Hi", raw=True, options={"num_predict": 30}).response == PLAIN


@scenario(NAME, "stream")
def _():
    parts = list(chat("Hi", stream=True))
    assert "".join(part.message.content or "" for part in parts) == PLAIN
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert "".join(part.response for part in client.generate("demo", "Hi", stream=True)) == PLAIN


@scenario(NAME, "tools")
def _():
    def get(city: str) -> str:
        """Weather

        Args:
          city: where
        """
        return "sun in " + city

    messages = user("weather")
    for stream in (False, True):
        answer = client.chat("demo", messages, tools=[get], stream=stream)
        calls = [call for part in (answer if stream else [answer]) for call in part.message.tool_calls or []]
        assert len(calls) == 1 and calls[0].function.name == "get", calls
        assert calls[0].function.arguments == {"city": "Oslo"}, calls
    result = get(**calls[0].function.arguments)
    answer = client.chat("demo", messages + [{"role": "assistant", "content": "", "tool_calls": calls},
                                             {"role": "tool", "tool_name": "get", "content": result}], tools=[get])
    assert answer.message.content == AFTER_TOOL, answer


@scenario(NAME, "thinking")
def _():
    answer = chat("ponder", think=True)
    assert answer.message.thinking == "Hm." and answer.message.content == "Done.", answer
    parts = list(chat("ponder", think="high", stream=True))
    assert "".join(part.message.thinking or "" for part in parts) == "Hm."
    assert client.generate("demo", "ponder", think=True).thinking == "Hm."
    again = client.chat("demo", [*user("ponder"), answer.message, *user("Hi")], think=True)
    assert again.message.content is not None


@scenario(NAME, "error")
def _():
    expect_error(lambda: chat("Hi", options={"temperature": 9}), ollama.ResponseError, "options.temperature")
    expect_error(lambda: client.chat("none", user("Hi")), ollama.ResponseError, "none")
    expect_error(lambda: client.chat("demo", [{"role": "user", "content": "x", "images": [b"png"]}]),
                 ollama.ResponseError, "no images")
    for call in (lambda: client.pull("demo"), lambda: client.delete("demo"), lambda: client.embed("demo", "x")):
        expect_error(call, ollama.ResponseError, "is not there")


@scenario(NAME, "cancel")
def _():
    stream = chat("forever", stream=True)
    next(stream)
    stream.close()
    expect_idle()


@scenario(NAME, "20 in parallel")
def _():
    in_parallel(lambda: chat("Hi").message.content)


@scenario(NAME, "async")
def _():
    async def ask():
        whole = await ollama.AsyncClient(scripted_url).chat("demo", user("Hi"))
        parts = [part async for part in await ollama.AsyncClient(scripted_url).chat("demo", user("Hi"), stream=True)]
        return whole.message.content, "".join(part.message.content or "" for part in parts)
    assert asyncio.run(ask()) == (PLAIN, PLAIN)


@scenario(NAME, "format")
def _():
    class Animal(pydantic.BaseModel, extra="forbid"):
        legs: bool
        tail: bool
    for seed in range(3):
        answer = model.chat("demo", user("An animal"), format=Animal.model_json_schema(),
                            options={"num_predict": 400, "seed": seed})
        Animal.model_validate_json(answer.message.content)
    text = model.chat("demo", user("An animal"), format="json", options={"num_predict": 200}).message.content
    assert text.lstrip().startswith("{"), text


@scenario(NAME, "models")
def _():
    names = [entry.model for entry in client.list().models]
    assert names == ["demo"], names
    shown = client.show("demo")
    assert "tools" in shown.capabilities and "thinking" in shown.capabilities, shown
    assert shown.modelinfo["deepseek4.context_length"] > 0
    assert [entry.name for entry in client.ps().models] == ["demo"]
    # A front end loads a model before it is used.
    assert client.generate("demo").done_reason == "load"
    assert client.generate("demo", keep_alive=0).done_reason == "unload"


@scenario(NAME, "same engine")
def _():
    """A greedy answer is that of the chat API."""
    ours = model.chat("demo", user("Tell me a story"), options={"temperature": 0, "num_predict": 20}).message.content
    request = urllib.request.Request(model_url + "/v1/chat/completions", headers={"Content-Type": "application/json"},
                                     data=json.dumps({"messages": user("Tell me a story"), "temperature": 0,
                                                      "max_tokens": 20}).encode())
    theirs = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
    assert ours == theirs, (ours, theirs)
