#!/usr/bin/env python3
"""Runs the OpenAI and Anthropic SDKs against `dsv4 serve`: plain, stream, tools round trip, thinking round trip, error,
cancel, 20 in parallel. Usage: check_clients.py BINARY"""

import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

import anthropic
import openai

CALL = ('<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get">\n<｜DSML｜parameter name="city" string="true">Oslo'
        '</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>')
SCRIPT = [
    {"match": "tool_result", "output": "It is sunny."},
    {"match": "weather", "output": "I look.</think>\n\n" + CALL},
    {"match": "ponder", "output": "Hm.</think>\n\nDone."},
    {"match": "forever", "output": "tick ", "repeat": 5000, "step_ms": 10},
    {"output": "Hello there."},
]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
OPENAI_TOOL = {"type": "function", "function": {"name": "get", "description": "Weather", "parameters": SCHEMA}}
ANTHROPIC_TOOL = {"name": "get", "description": "Weather", "input_schema": SCHEMA}
THINKING = {"thinking": {"type": "enabled"}}

results = []


def check(name):
    def wrap(function):
        try:
            function()
            results.append((name, None))
        except Exception as error:  # a client's failure is a finding, whatever it is
            results.append((name, f"{type(error).__name__}: {str(error)[:300]}"))
        return function
    return wrap


class Server:
    def __init__(self, binary, *options):
        self.process = subprocess.Popen([binary, "serve", "demo", "--port", "0", *options], stderr=subprocess.PIPE, text=True)
        self.port = None
        for line in self.process.stderr:
            entry = json.loads(line)
            self.port = entry.get("port", self.port)
            if entry["event"] == "ready":
                break
        else:
            sys.exit("the server did not start")
        self.url = f"http://127.0.0.1:{self.port}"

    def metric(self, name):
        text = urllib.request.urlopen(self.url + "/metrics").read().decode()
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + " "))

    def stop(self):
        self.process.terminate()
        self.process.stderr.close()
        return self.process.wait(30)


def user(text):
    return [{"role": "user", "content": text}]


def openai_chat(client):
    create = client.chat.completions.create

    @check("openai chat: plain")
    def _():
        answer = create(model="demo", messages=user("Hi"))
        assert answer.choices[0].message.content == "Hello there.", answer
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens

    @check("openai chat: stream")
    def _():
        chunks = list(create(model="demo", messages=user("Hi"), stream=True, stream_options={"include_usage": True}))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == "Hello there." and chunks[-1].usage.completion_tokens > 0, chunks

    @check("openai chat: tools and thinking round trip")
    def _():
        messages = user("weather")
        message = create(model="demo", messages=messages, tools=[OPENAI_TOOL], extra_body=THINKING).choices[0].message
        call = message.tool_calls[0]
        assert json.loads(call.function.arguments) == {"city": "Oslo"}
        assert message.reasoning_content == "I look."
        messages += [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        answer = create(model="demo", messages=messages, tools=[OPENAI_TOOL], extra_body=THINKING)
        assert answer.choices[0].finish_reason == "stop", answer

    @check("openai chat: streamed tool call")
    def _():
        arguments = ""
        for chunk in create(model="demo", messages=user("weather"), tools=[OPENAI_TOOL], stream=True):
            for call in chunk.choices[0].delta.tool_calls or []:
                arguments += call.function.arguments or ""
        assert json.loads(arguments) == {"city": "Oslo"}, arguments

    @check("openai chat: errors")
    def _():
        for arguments, kind in (({"model": "none"}, openai.NotFoundError), ({"temperature": 9}, openai.BadRequestError)):
            try:
                create(**{"model": "demo", "messages": user("Hi"), **arguments})
                raise AssertionError(f"{arguments} was accepted")
            except kind as error:
                assert error.body["message"]

    @check("openai chat: logprobs and n")
    def _():
        answer = create(model="demo", messages=user("Hi"), n=2, logprobs=True)
        assert len(answer.choices) == 2 and answer.choices[1].logprobs.content[0].bytes

    @check("openai: models and completions")
    def _():
        assert client.models.list().data[0].id == "demo"
        assert client.completions.create(model="demo", prompt="Hi").choices[0].text == "Hello there."

    @check("openai chat: 20 in parallel")
    def _():
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda _: create(model="demo", messages=user("Hi")), range(20)))
        assert all(a.choices[0].message.content == "Hello there." for a in answers)


def openai_responses(client):
    tool = {"type": "function", "name": "get", "parameters": SCHEMA}

    @check("openai responses: plain and stream")
    def _():
        assert client.responses.create(model="demo", input="Hi").output_text == "Hello there."
        events = list(client.responses.create(model="demo", input="Hi", stream=True))
        assert [e.sequence_number for e in events] == list(range(len(events)))
        assert events[-1].type == "response.completed" and events[-1].response.output_text == "Hello there."

    @check("openai responses: tools and reasoning round trip")
    def _():
        extra = {"include": ["reasoning.encrypted_content"], "reasoning": {"effort": "high"}}
        items = user("weather")
        answer = client.responses.create(model="demo", input=items, tools=[tool], **extra)
        call = answer.output[-1]
        assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Oslo"}, answer
        items += [item.model_dump(exclude_none=True) for item in answer.output]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
        assert client.responses.create(model="demo", input=items, tools=[tool], **extra).status == "completed"

    @check("openai responses: errors")
    def _():
        try:
            client.responses.create(model="demo", input="Hi", previous_response_id="resp_1")
            raise AssertionError("previous_response_id was accepted")
        except openai.BadRequestError as error:
            assert "previous_response_id" in str(error)


def anthropic_messages(client):
    create = client.messages.create

    @check("anthropic: plain")
    def _():
        answer = create(model="demo", max_tokens=100, messages=user("Hi"))
        assert answer.content[0].text == "Hello there." and answer.stop_reason == "end_turn", answer

    @check("anthropic: stream")
    def _():
        with client.messages.stream(model="demo", max_tokens=100, messages=user("Hi")) as stream:
            assert "".join(stream.text_stream) == "Hello there."
            assert stream.get_final_message().usage.output_tokens > 0

    @check("anthropic: tools and thinking round trip")
    def _():
        extra = {"tools": [ANTHROPIC_TOOL], "thinking": {"type": "enabled", "budget_tokens": 1024}}
        messages = user("weather")
        answer = create(model="demo", max_tokens=2000, messages=messages, **extra)
        assert [block.type for block in answer.content] == ["thinking", "tool_use"], answer
        assert answer.content[1].input == {"city": "Oslo"} and answer.stop_reason == "tool_use"
        result = {"type": "tool_result", "tool_use_id": answer.content[1].id, "content": "sunny"}
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
        assert create(model="demo", max_tokens=2000, messages=messages, **extra).stop_reason
        with client.messages.stream(model="demo", max_tokens=2000, messages=user("weather"), **extra) as stream:
            assert stream.get_final_message().content[1].input == {"city": "Oslo"}

    @check("anthropic: count_tokens equals the prompt's usage")
    def _():
        counted = client.messages.count_tokens(model="demo", messages=user("Hi")).input_tokens
        assert counted == create(model="demo", max_tokens=5, messages=user("Hi")).usage.input_tokens

    @check("anthropic: errors")
    def _():
        try:
            create(model="demo", max_tokens=10, messages=[])
            raise AssertionError("no messages were accepted")
        except anthropic.BadRequestError as error:
            assert error.body["error"]["type"] == "invalid_request_error"

    @check("anthropic: 20 in parallel")
    def _():
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda _: create(model="demo", max_tokens=50, messages=user("Hi")), range(20)))
        assert all(a.content[0].text == "Hello there." for a in answers)


def cancelled(server, client):
    @check("cancel: a closed stream ends its request")
    def _():
        stream = client.chat.completions.create(model="demo", messages=user("forever"), stream=True)
        next(iter(stream))
        stream.close()
        for _ in range(100):
            if server.metric("dsv4_requests_running") == 0:
                return
            time.sleep(0.02)
        raise AssertionError("still running after 2 s")


def bundled_model(binary):
    server = Server(binary)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")

    @check("bundled model: greedy answers repeat, streams equal whole answers")
    def _():
        arguments = {"model": "demo", "messages": user("Tell me a story."), "temperature": 0, "max_tokens": 24}
        whole = client.chat.completions.create(**arguments).choices[0].message.content
        chunks = list(client.chat.completions.create(**arguments, stream=True))
        assert whole and whole == "".join(c.choices[0].delta.content or "" for c in chunks), whole

    @check("bundled model: SIGTERM ends with status 0")
    def _():
        assert server.stop() == 0


def main():
    binary = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "script.jsonl"
        script.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in SCRIPT))
        server = Server(binary, "--engine", f"script:{script}", "--max-batch", "8")
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        openai_chat(client)
        openai_responses(client)
        anthropic_messages(anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0))
        cancelled(server, client)
        server.stop()
    bundled_model(binary)
    for name, error in results:
        print(f"{'FAILED' if error else 'ok    '} {name}" + (f": {error}" if error else ""))
    failed = sum(1 for _, error in results if error)
    print(f"openai {openai.__version__}, anthropic {anthropic.__version__}: {len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
