#!/usr/bin/env python3
"""Answers of the bundled model under random schemas and tools, checked by a validator that is not ours (PyPI's
`jsonschema`), and calls of a scripted engine for random tools (docs/spec/serving.md 10.3, schema and tools). Ends with
"N passed, N failed".

    tools/serve/random_formats.py BINARY          200 answers of each kind
    DSV4_CAMPAIGN=10000 ... BINARY                so many answers under schemas that ended, and half as many forced calls
    ... BINARY --first 100000 --seconds 100       other cases, as many as the time allows

schemas   every answer that ends validates; one that max_tokens cuts is the beginning of JSON
forced    tool_choice required and named, strict tools: every answer is a call whose arguments validate
parsed    what a model writes for random calls of random tools is parsed to the same names and arguments, whole and streamed
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import random
import string
import sys
import tempfile
import time

import jsonschema

import load
from load import check
from server import Server, write_script

CLIENTS = 8
WORDS = ["city", "days", "unit", "name", "größe", "a b", "x", "list", "on", "$id", "naïve", "k/v", "价格"]


def random_schema(rng, depth=0):
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "format"]
    if depth < 3:
        kinds += ["object", "object", "array", "anyOf", "tuple", "types"]
    kind = rng.choice(kinds) if depth else rng.choice(["object", "object", "object", "array", "anyOf"])
    if kind == "string":
        low = rng.randrange(3)
        return {"type": "string", "minLength": low, "maxLength": low + rng.randrange(8)}
    if kind == "integer":
        low = rng.randrange(-1000, 1000)
        return rng.choice([{"type": "integer", "minimum": low, "maximum": low + rng.randrange(2000)},
                           {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 2 + rng.randrange(50)},
                           {"type": "integer", "multipleOf": rng.randrange(1, 12)}])
    if kind == "number":
        low = rng.randrange(-50, 50)
        return {"type": "number", "minimum": low, "maximum": low + rng.randrange(1, 100)}
    if kind in ("boolean", "null"):
        return {"type": kind}
    if kind == "enum":
        return {"enum": rng.sample([1, -2.5, "cat", "d\"og", None, True, [1, "x"], {"a": 1}], rng.randrange(1, 5))}
    if kind == "const":
        return {"const": rng.choice(["é", 7, [], {"a": [None]}, "line\nend"])}
    if kind == "pattern":
        return {"type": "string", "pattern": rng.choice(["^[a-c]{1,3}$", "^\\d{2}-[x-z]+?\\d$", "^(ab|cd){1,2}$", "^[^a-z\\s]{2}$"])}
    if kind == "format":
        return {"type": "string", "format": rng.choice(["date", "uuid", "ipv4", "time", "date-time", "email", "hostname"])}
    if kind == "array":
        low = rng.randrange(3)
        return {"type": "array", "items": random_schema(rng, depth + 1), "minItems": low, "maxItems": low + rng.randrange(3)}
    if kind == "tuple":
        return {"type": "array", "prefixItems": [random_schema(rng, depth + 1) for _ in range(rng.randrange(1, 3))],
                "items": False, "minItems": 1}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(rng.randrange(2, 4))]}
    if kind == "types":
        return {"type": rng.sample(["integer", "boolean", "null"], 2)}
    keys = rng.sample(WORDS, rng.randrange(5))
    return {"type": "object", "properties": {key: random_schema(rng, depth + 1) for key in keys},
            "required": [key for key in keys if rng.random() < 0.6], "additionalProperties": False}


def parameters(rng):
    """A schema of an object with at least one property."""
    while True:
        schema = random_schema(rng)
        if schema.get("type") == "object" and schema["properties"]:
            return schema


def problem(value, schema):
    """What is wrong with a value; None: nothing."""
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    error = next(validator.iter_errors(value), None)
    return error and error.message


def ask(server, body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def is_beginning(text):
    """Of JSON: it can be read until it ends."""
    try:
        json.loads(text)
        return True
    except json.JSONDecodeError as error:
        rest = text[error.pos:]
        return error.pos >= len(text.rstrip()) or rest[:1] in '"-.tfn0123456789' or error.msg.startswith(("Unterminated", "Invalid \\"))


class Tally(dict):
    def count(self, key, example=None):
        self[key] = self.get(key, 0) + 1
        if example is not None:
            self.setdefault("examples", []).append(example)

    def sum(self, *keys):
        return sum(self.get(key, 0) for key in keys)

    def text(self):
        examples = self.pop("examples", [])
        return ", ".join(f"{count} {key}" for key, count in self.items()) + "".join(f"\n    {one}" for one in examples[:3])


def in_parallel(work, options, done):
    """work(number) for numbers from options.first until done() says that it is enough, or the time is over."""
    end = time.monotonic() + options.seconds
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        number = options.first
        while not done() and time.monotonic() < end:
            list(pool.map(work, range(number, number + 4 * CLIENTS)))
            number += 4 * CLIENTS


def schemas(server, options):
    tally = Tally()

    def one(number):
        rng = random.Random(number)
        schema, strict = random_schema(rng), rng.random() < 0.5
        status, text = ask(server, {
            "messages": [{"role": "user", "content": "Reply in json."}], "seed": number, "n": options.choices,
            "max_tokens": 120,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": strict}}})
        if status != 200:
            kind = "unsupported" if "unsupported_schema" in text else "failed"
            return tally.count(kind, None if kind == "unsupported" else text[:300])
        for choice in json.loads(text)["choices"]:
            content = choice["message"]["content"] or ""
            if choice["finish_reason"] != "stop":
                tally.count("cut" if is_beginning(content) else "cut elsewhere", None if is_beginning(content) else content)
                continue
            try:
                wrong = problem(json.loads(content), schema)
            except json.JSONDecodeError as error:
                wrong = str(error)
            tally.count("invalid" if wrong else "valid", f"{wrong}: {content} of {schema}" if wrong else None)
        return None
    in_parallel(one, options, lambda: tally.sum("valid", "invalid", "failed") >= options.wanted)
    check("schemas", tally.sum("invalid", "failed", "cut elsewhere") == 0 and tally.sum("valid") > 0, tally.text())


def tools_of(rng):
    names = rng.sample(["get_weather", "f", "Search-2", "a" * 60, "book.flight", "設定"], rng.randrange(1, 4))
    return [{"type": "function", "function": {"name": name, "strict": True, "parameters": strict(parameters(rng))}} for name in names]


def strict(schema):
    """strict: true wants every property required, at every depth."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: strict(value) if key not in ("enum", "const") else value for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        out["required"] = list(schema["properties"])
    return out


def forced(server, options):
    tally = Tally()

    def one(number):
        rng = random.Random(1_000_000 + number)
        tools = tools_of(rng)
        by_name = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        named = rng.choice(list(by_name)) if rng.random() < 0.5 else None
        choice = {"type": "function", "function": {"name": named}} if named else "required"
        status, text = ask(server, {
            "messages": [{"role": "user", "content": "Go."}], "tools": tools, "tool_choice": choice, "seed": number, "n": 2,
            "max_tokens": 400, "parallel_tool_calls": rng.random() < 0.3,
            "thinking": {"type": "enabled", "budget_tokens": 1024} if rng.random() < 0.1 else {"type": "disabled"}})
        if status != 200:
            kind = "unsupported" if "unsupported_schema" in text else "failed"
            return tally.count(kind, None if kind == "unsupported" else text[:300])
        for answer in json.loads(text)["choices"]:
            calls = answer["message"].get("tool_calls") or []
            if answer["finish_reason"] == "length":
                tally.count("cut")
                continue
            wrong = None if answer["finish_reason"] == "tool_calls" and calls else f"no call: {answer}"
            for call in calls:
                name = call["function"]["name"]
                if name not in by_name or (named and name != named):
                    wrong = f"{name} of {choice}"
                else:
                    wrong = wrong or problem(json.loads(call["function"]["arguments"]), by_name[name])
            tally.count("wrong" if wrong else "calls", f"{wrong}: {calls}" if wrong else None)
        return None
    in_parallel(one, options, lambda: tally.sum("calls", "wrong", "failed") >= options.wanted // 2)
    check("forced calls", tally.sum("wrong", "failed") == 0 and tally.sum("calls") > 0, tally.text())


def random_value(rng, depth=0):
    text = "".join(rng.choice(string.ascii_letters + " \n\"\\<>/é漢\t{}") for _ in range(rng.randrange(12)))
    plain = [text, text, rng.randrange(-10**6, 10**6), rng.random() * 100, True, None]
    if depth > 1 or rng.random() < 0.7:
        return rng.choice(plain)
    return rng.choice([[random_value(rng, depth + 1) for _ in range(rng.randrange(3))],
                       {word: random_value(rng, depth + 1) for word in rng.sample(WORDS, rng.randrange(3))}])


DSML = "｜DSML｜"


def written(calls):
    """As the released models write calls."""
    out = f"<{DSML}tool_calls>\n"
    for name, arguments in calls:
        out += f'<{DSML}invoke name="{name}">\n'
        for key, value in arguments.items():
            is_text = isinstance(value, str)
            shown = value if is_text else json.dumps(value, ensure_ascii=False)
            out += f'<{DSML}parameter name="{key}" string="{"true" if is_text else "false"}">{shown}</{DSML}parameter>\n'
        out += f"</{DSML}invoke>\n"
    return out + f"</{DSML}tool_calls>"


def streamed_calls(text):
    calls = {}
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            for delta in choice["delta"].get("tool_calls", []):
                call = calls.setdefault(delta["index"], ["", ""])
                call[0] += delta["function"].get("name", "")
                call[1] += delta["function"].get("arguments", "")
    return [(name, json.loads(arguments)) for _, (name, arguments) in sorted(calls.items())]


def parsed(binary, wanted, first):
    tally, cases, lines = Tally(), [], []
    for number in range(wanted):
        rng = random.Random(2_000_000 + first + number)
        keys = ["arg_" + word.replace(" ", "_") for word in WORDS]
        calls = [(f"tool_{rng.randrange(5)}", {key: random_value(rng) for key in rng.sample(keys, rng.randrange(5))})
                 for _ in range(rng.randrange(1, 4))]
        text = rng.choice(["", "I look.\n\n", "Let me see < 3.\n\n"])
        cases.append((text.rstrip("\n"), calls))
        lines.append({"match": f"case {number}.", "output": text + written(calls)})
    lines.append({"output": "none"})  # for the canary
    tools = [{"type": "function", "function": {"name": f"tool_{i}"}} for i in range(5)]
    with tempfile.TemporaryDirectory() as folder:
        server = Server(binary, "--engine", f"script:{write_script(folder, lines)}", "--max-batch", "16")

        def one(number):
            text, calls = cases[number]
            for stream in (False, True):
                status, answer = ask(server, {"messages": [{"role": "user", "content": f"case {number}."}], "tools": tools,
                                              "stream": stream, "max_tokens": 20000})
                if status == 200 and not stream:
                    message = json.loads(answer)["choices"][0]["message"]
                    got = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]
                    same = got == calls and (message["content"] or "") == text
                else:
                    same = status == 200 and streamed_calls(answer) == calls
                tally.count("right" if same else "wrong", None if same else f"{calls}: {answer[:500]}")
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(one, range(wanted)))
        server.stop()
    check("parsed calls", tally.sum("wrong") == 0 and tally.sum("right") == 2 * wanted, tally.text())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", choices=["schemas", "forced", "parsed"])
    parser.add_argument("--choices", type=int, default=4, help="answers under each schema")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of each of the two campaigns with the model")
    options = parser.parse_args()
    options.wanted = int(os.environ.get("DSV4_CAMPAIGN", "200"))
    if options.only in (None, "parsed"):  # a script is searched from its beginning for every request
        parsed(options.binary, min(options.wanted, 2000), options.first)
    server = Server(options.binary, "--max-batch", "16", "--context", "4096")
    if options.only in (None, "schemas"):
        schemas(server, options)
    if options.only in (None, "forced"):
        forced(server, options)
    check("SIGTERM", server.stop() == 0, "status 0")
    print(f"{load.passed} passed, {len(load.failures)} failed")
    return 1 if load.failures else 0


if __name__ == "__main__":
    sys.exit(main())
