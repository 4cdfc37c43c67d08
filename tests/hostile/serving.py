"""A server with the bundled model under hostile clients: damaged bodies of every API, schemas and grammars, heads that
lie, requests in pieces or in halves.

Each answer has a status that says what happened; an error is one short message without words of a library; a stream is
of JSON. The server then still answers, and ends on SIGTERM with exit code 0.
"""

import json
import os
import random
import signal
import socket
import time

from folders import STRANGE, change_json, json_text
from outcome import INTERNAL, Run

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
PATIENCE = 120  # seconds for an answer, on a busy machine
LONGEST_MESSAGE = 700
USER = {"role": "user", "content": "Tell me of the mill."}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", 1]}}, "required": ["a"],
          "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "get", "description": "d", "parameters": SCHEMA, "strict": True}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "c1", "type": "function", "function": {"name": "get", "arguments": "{\"a\": 1}"}}]}
GOOD = {
    "/v1/chat/completions": [
        {"messages": [{"role": "system", "content": "s"}, USER], "max_tokens": 4, "temperature": 0.5, "seed": 3},
        {"messages": [USER], "max_tokens": 4, "n": 2, "logprobs": True, "top_logprobs": 2, "stop": ["x"],
         "logit_bias": {"5": -1}, "min_p": 0.1, "presence_penalty": 1, "stream": True,
         "stream_options": {"include_usage": True}},
        {"messages": [USER, CALLED, {"role": "tool", "tool_call_id": "c1", "content": "2"}], "tools": [TOOL],
         "tool_choice": "auto", "max_tokens": 4},
        {"messages": [USER], "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "get"}},
         "max_tokens": 12, "thinking": {"type": "disabled"}},
        {"messages": [USER], "max_tokens": 12, "reasoning_effort": "high", "stream": True,
         "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "max_tokens": 8,
         "structured_outputs": {"regex": "[a-c]{2,5}|x+"}},
        {"messages": [USER], "max_tokens": 8, "guided_grammar": "root ::= \"yes\" | [0-9]+ \".\""},
        {"messages": [USER], "max_tokens": 8, "guided_choice": ["a", "b"], "chat_template_kwargs": {"thinking": True}}],
    "/v1/completions": [
        {"prompt": "Once upon", "max_tokens": 4, "echo": True, "logprobs": 2},
        {"prompt": [[1, 2, 3], [4, 5]], "max_tokens": 3, "stream": True, "stop_token_ids": [7], "suffix": None}],
    "/v1/messages": [
        {"messages": [USER], "max_tokens": 4, "system": [{"type": "text", "text": "s"}], "stop_sequences": ["x"]},
        {"messages": [USER], "max_tokens": 8, "stream": True, "tools": [
            {"name": "get", "description": "d", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}},
        {"messages": [USER, {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "AA=="},
            {"type": "tool_use", "id": "t1", "name": "get", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "2"}]}],
         "max_tokens": 4, "thinking": {"type": "enabled", "budget_tokens": 1024}}],
    "/v1/messages/count_tokens": [{"messages": [USER], "system": "s"}],
    "/v1/responses": [
        {"input": "Hi", "max_output_tokens": 4, "stream": True, "reasoning": {"effort": "low"}},
        {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                   {"type": "function_call", "call_id": "c", "name": "get", "arguments": "{}"},
                   {"type": "function_call_output", "call_id": "c", "output": "2"}],
         "max_output_tokens": 4, "tools": [{"type": "function", "name": "get", "parameters": SCHEMA, "strict": True}],
         "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}],
    "/v1/dsv4/tokenize": [{"prompt": "Once <｜User｜>"}, {"messages": [USER]}],
    "/v1/dsv4/detokenize": [{"tokens": [1, 2, 300]}],
    "/v1/dsv4/render": [{"messages": [USER], "tools": [TOOL]}],
    "/v1/dsv4/cache/drop": [{}],
    "/v1/dsv4/requests/x/cancel": [{}]}
PIECES = ["(a+)+$", "[", "(?:a?){20}b", "a{1,1000}{1,1000}", "\\p{L}*", "(?=a)", "root ::= root", "root ::= \"",
          "root ::= a", {"$ref": "#"}, {"$ref": "#/$defs/a"}, {"type": "zzz"}, {"anyOf": []}, {"allOf": [{}, {}]},
          {"enum": []}, {"not": {}}, {"type": "string", "pattern": "(a|b)*c{1,900}"},
          {"type": "array", "minItems": 2**31}, {"const": "\x1b[2J"},
          {"type": "integer", "minimum": 2**63, "maximum": -2**63},
          {"type": "string", "minLength": 2**53, "maxLength": 2},
          {"type": "object", "properties": {"": {}, "\x00": {}}, "patternProperties": {"[": {}}}, True,
          "<｜DSML｜tool_calls>", "<｜end▁of▁sentence｜>", "\ud800", "\uffff\U0010ffff", "e\u0301" * 500,
          {"type": "image_url"}]
HEADS = ["Content-Length: -1", "Content-Length: 99999999999999999999", "Content-Length: 5\r\nContent-Length: 6",
         "Transfer-Encoding: chunked, chunked", "Expect: 100-continue", "Host: \x00", "X: " + "y" * 9000,
         "Connection: upgrade", "Authorization: Bearer \xff\x1b[2J", "Content-Encoding: gzip",
         "Content-Type: text/html; charset=\"", "Cookie: a=b", "Accept: \x7f", "X-Forwarded-For: ,,,", "Origin: null",
         "Origin: http://evil\x1b", "Range: bytes=0-", ": no name", "X"]


def damaged_body(rng):
    """A route and bytes for it."""
    route = rng.choice(sorted(GOOD))
    value = json.loads(json.dumps(rng.choice(GOOD[route])))
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        try:
            change_json(rng, value, STRANGE + PIECES)
        except (IndexError, TypeError):  # an earlier change has left nothing to change
            break
    if rng.random() < 0.2:
        route = rng.choice(sorted(GOOD))
    data = bytearray(json_text(value, ensure_ascii=rng.random() < 0.7))
    if rng.random() < 0.15:
        for _ in range(rng.choice([1, 5])):
            data[rng.randrange(len(data))] = rng.randrange(256)
    if rng.random() < 0.1:
        del data[rng.randrange(len(data)):]
    return route, bytes(data)


def request(rng):
    """The bytes of a request, and whether a server has all that it waits for."""
    route, body = damaged_body(rng)
    method = rng.choice(["POST"] * 20 + ["GET", "PUT", "OPTIONS", "DELETE", "HEAD", "\x1b", "P\xff"])
    if rng.random() < 0.1:
        route = rng.choice(["/", "/metrics", "/v1/models/\x1b[2J", "/v1/models/%00", "/" + "a" * 9000, "*",
                            "http://x/health", "/v1/dsv4/requests", "/v1/dsv4/cache", "/v1/chat/completions?a=%zz",
                                "/../health"])
    again = rng.random() < 0.3
    head = f"{method} {route} HTTP/{rng.choice(['1.1'] * 12 + ['1.0', '2.0', '9'])}\r\nHost: localhost\r\n"
    head += f"Content-Type: application/json\r\nConnection: {'keep-alive' if again else 'close'}\r\n"
    if rng.random() < 0.15:
        head += rng.choice(HEADS) + "\r\n"
    more = 0
    if rng.random() < 0.2:
        cuts = sorted(rng.randrange(len(body) + 1) for _ in range(rng.choice([0, 1, 7])))
        chunks = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)]) if a < b]
        body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
        head += "Transfer-Encoding: chunked\r\n"
    else:
        more = rng.choice([0] * 15 + [-3, 5])
        head += f"Content-Length: {max(0, len(body) + more)}\r\n"
    data = head.encode("latin-1", "replace") + b"\r\n" + body
    if rng.random() < 0.1:
        return data[:rng.randrange(len(data))], False
    return data + (HEALTH if again else b""), more <= 0


def receive(port, data, whole=True, pauses=()):
    """What the server sends until it closes; None: it does not close. `pauses`: where the bytes stop for a moment."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        cuts = sorted(pauses)
        received = []
        try:
            for begin, end in zip([0, *cuts], [*cuts, len(data)]):
                connection.sendall(data[begin:end])
                time.sleep(0.01 if cuts else 0)
            if not whole:
                connection.shutdown(socket.SHUT_WR)  # as a client that leaves
            while piece := connection.recv(1 << 16):
                received.append(piece)
        except (BrokenPipeError, ConnectionResetError):  # it refused before it had read everything
            pass
        except TimeoutError:
            return None
    return b"".join(received)


def first_body(head, rest):
    """The body of the first answer of those that a connection gave."""
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    if b"transfer-encoding" not in fields:
        return rest[:int(fields.get(b"content-length", 0))]
    body = b""
    while b"\r\n" in rest:
        size, rest = rest.split(b"\r\n", 1)
        size = int(size, 16)
        if size == 0:
            break
        body, rest = body + rest[:size], rest[size + 2:]
    return body


def finding_in(answer):
    """What is wrong with an answer; ''."""
    if answer is None:
        return "no end of an answer"
    if not answer:
        return ""  # it had no whole request
    while answer.startswith(b"HTTP/1.1 100"):
        answer = answer.partition(b"\r\n\r\n")[2]
    head, _, rest = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    if status not in (200, 204, 400, 401, 403, 404, 405, 408, 411, 413, 414, 415, 417, 429, 431, 501, 505):
        return f"status {status}"
    if any(byte < 0x20 and byte not in b"\r\n\t" for byte in head):
        return "control character in a header"
    body = first_body(head, rest)
    if any(text in body for text in INTERNAL):
        return "internal text"
    try:
        if b"text/event-stream" in head.lower():
            events = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ") and line != b"data: [DONE]"]
            parsed = [json.loads(event) for event in events]
        else:
            parsed = [json.loads(body)] if b"application/json" in head.lower() and body else []
    except ValueError:
        return "an answer that is no JSON"
    for value in parsed:
        error = value.get("error") if isinstance(value, dict) else None
        if error and not isinstance(error.get("message"), str):
            return "an error without a message"
        if error and len(error["message"]) > LONGEST_MESSAGE:
            return "long message"
        if error and any(ord(c) < 0x20 for c in error["message"]):
            return "control character in a message"
    return ""


def port_of(program):
    """The port, when the server is ready; None: it ended before."""
    while not program.has_ended():
        lines = program.errors.read_bytes().splitlines()
        log = [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]
        if any(line["event"] == "ready" for line in log):
            return next(line["port"] for line in log if "port" in line)
        time.sleep(0.01)
    return None


def client(rng, place):
    def play(program):
        port = port_of(program)
        if port is None:
            return ""  # how it ended is judged
        try:
            for number in range(25):
                data, whole = request(rng)
                pauses = [rng.randrange(len(data)) for _ in range(3)] if data and rng.random() < 0.1 else []
                finding = finding_in(receive(port, data, whole, pauses))
                if finding:
                    (place.folder / "request").write_bytes(data)
                    return f"{finding}, request {number}: {data[-300:]!r}"
            return "" if receive(port, HEALTH).startswith(b"HTTP/1.1 200") else "no /health"
        except OSError as error:
            return f"a client: {error}"
        finally:
            os.kill(program.pid, signal.SIGTERM)
    return play


def case(rng, place):
    options = rng.choice([[], ["--strict-fields"], ["--tool-grammar", "all"], ["--tool-coerce"], ["--lenient-tools"],
                          ["--logprobs-mode", "processed", "--log-content"], ["--any-model", "--require-reasoning"]])
    words = ["serve", "demo", "--port", "0", "--context", "512", "--threads", "1", "--drain-s", "5", *options]

    def judge(done):
        return f"exit code {done.code} after SIGTERM: {done.err[-300:]!r}" if done.code else ""
    return " ".join(options), [Run(words, play=client(random.Random(rng.random()), place), judge=judge)]
