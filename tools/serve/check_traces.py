#!/usr/bin/env python3
"""Traces of the server, as a collector gets them: check_traces.py BINARY

A collector of this script parses every body strictly as the protocol's message (opentelemetry-proto from PyPI), joins
the spans of a caller's trace, and then fails, stalls and leaves while the server answers."""

import http.server
import json
import os
import statistics
import sys
import tempfile
import threading
import time
import urllib.request

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from server import Server, write_script

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEXADECIMAL_IDS = ("traceId", "spanId", "parentSpanId")


def message_of(body):
    """OTLP's JSON has ids in hexadecimal where the mapping of protobuf has base64: that is its only difference."""
    tree = json.loads(body)
    for resource in tree["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for key in HEXADECIMAL_IDS:
                    if key in span:
                        raw = bytes.fromhex(span[key])
                        assert len(raw) == (16 if key == "traceId" else 8) and any(raw), span[key]
                        span[key] = json_format.base64.b64encode(raw).decode()
    return json_format.ParseDict(tree, ExportTraceServiceRequest(), ignore_unknown_fields=False)


class Collector(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.mode, self.spans, self.resources, self.headers, self.problems, self.asked = "ok", [], [], [], [], 0
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def wait_for(self, spans, seconds=30):
        for _ in range(seconds * 50):
            if len(self.spans) >= spans or self.problems:
                break
            time.sleep(0.02)
        assert not self.problems and len(self.spans) >= spans, (self.problems, len(self.spans))


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        collector = self.server
        collector.asked += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if collector.mode == "stall":
            time.sleep(60)
        if collector.mode == "fail":
            return self.send_error(500)
        try:
            assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/json"
            for resource in message_of(body).resource_spans:
                collector.resources.append({a.key: a.value.string_value for a in resource.resource.attributes})
                for scope in resource.scope_spans:
                    collector.spans += scope.spans
            collector.headers.append(dict(self.headers))
        except Exception as problem:
            collector.problems.append(repr(problem))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def ask(server, path="/v1/chat/completions", headers=None, **more):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8} | more
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"} | (headers or {}))
    begin = time.monotonic()
    with urllib.request.urlopen(request) as answer:
        answer.read()
        return time.monotonic() - begin, answer.headers


def metric(server, name):
    text = urllib.request.urlopen(server.url + "/metrics").read().decode()
    return next(int(float(line.split()[-1])) for line in text.splitlines() if line.startswith(name + " "))


def check_spans(binary):
    collector = Collector()
    server = Server(binary, environment={
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=a%20b",
        "OTEL_SERVICE_NAME": "flash", "OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=p-0", "OTEL_BSP_SCHEDULE_DELAY": "100"})
    before = time.time_ns()
    _, headers = ask(server, headers={"traceparent": f"00-{TRACE}-{SPAN}-01", "X-Request-Id": "mine-1"})
    assert headers["x-request-id"] == "mine-1"
    collector.wait_for(4)
    spans = {span.name: span for span in collector.spans}
    assert set(spans) == {"POST /v1/chat/completions", "queue", "prefill", "decode"}, spans.keys()
    root = spans.pop("POST /v1/chat/completions")
    assert root.trace_id.hex() == TRACE and root.parent_span_id.hex() == SPAN and root.kind == 2
    assert before <= root.start_time_unix_nano < root.end_time_unix_nano <= time.time_ns()
    order = [spans[name] for name in ("queue", "prefill", "decode")]
    assert order[0].start_time_unix_nano == root.start_time_unix_nano
    assert order[-1].end_time_unix_nano == root.end_time_unix_nano
    for one, next_one in zip(order, order[1:]):
        assert one.end_time_unix_nano == next_one.start_time_unix_nano
    for span in order:
        assert span.parent_span_id == root.span_id and span.trace_id == root.trace_id
        assert span.start_time_unix_nano <= span.end_time_unix_nano
    attributes = {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in root.attributes}
    assert attributes["dsv4.client_request_id"] == "mine-1" and attributes["gen_ai.request.model"] == "demo"
    assert attributes["gen_ai.usage.input_tokens"] > 0 and attributes["gen_ai.usage.output_tokens"] > 0
    assert collector.resources[0] == {"service.name": "flash", "k8s.pod.name": "p-0",
                                      "service.version": collector.resources[0]["service.version"]}
    assert collector.headers[0]["x-tenant"] == "a b"
    # A caller that does not record; requests without a caller; other APIs; nonsense as a caller.
    ask(server, headers={"traceparent": f"00-{TRACE}-{SPAN}-00"})
    ask(server, headers={"traceparent": "00-nonsense"})
    ask(server, "/v1/messages")
    ask(server, "/api/chat", stream=False)
    collector.wait_for(16)
    time.sleep(0.3)
    roots = [span for span in collector.spans if span.kind == 2]
    assert len(collector.spans) == 16 and len({span.trace_id for span in roots}) == 4
    assert len({span.span_id for span in collector.spans}) == 16
    assert {span.name for span in roots[1:]} == {"POST /v1/chat/completions", "POST /v1/messages", "POST /api/chat"}
    assert metric(server, "dsv4_trace_spans_total") == 16 and metric(server, "dsv4_trace_spans_dropped_total") == 0
    # What waits when the server ends is sent.
    ask(server)
    assert server.stop() == 0
    assert len(collector.spans) == 20, len(collector.spans)
    print("ok: spans are the protocol's messages, and join the caller's trace")


def check_bad_collectors(binary, folder):
    script = write_script(folder, [{"output": "Hello."}])
    collector = Collector()
    traced = Server(binary, "--engine", f"script:{script}", environment={
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_BSP_MAX_QUEUE_SIZE": "16", "OTEL_EXPORTER_OTLP_TIMEOUT": "1000"})
    plain = Server(binary, "--engine", f"script:{script}")

    def both():
        """Medians of both servers, asked in turn, so that the machine's load is that of both."""
        times = [(ask(plain)[0], ask(traced)[0]) for _ in range(60)]
        return [statistics.median(column) for column in zip(*times)]
    both()
    dropped = 0
    for mode in ("stall", "fail"):
        collector.mode = mode
        asked = collector.asked
        alone, beside = both()
        for _ in range(200):
            if metric(traced, "dsv4_trace_spans_dropped_total") > dropped and collector.asked > asked:
                break
            time.sleep(0.05)
        now = metric(traced, "dsv4_trace_spans_dropped_total")
        assert now > dropped and collector.asked > asked, (mode, now, dropped)
        dropped = now
        assert beside < 2 * alone + 0.01, (mode, alone, beside)  # a wait for the collector would be a second
        print(f"ok: a collector that is to {mode}: median {1e3 * beside:.1f} ms, without traces {1e3 * alone:.1f} ms, "
              f"{dropped} spans dropped so far")
    collector.server_close()
    collector.mode = "stall"
    begin = time.monotonic()
    assert traced.stop() == 0 and plain.stop() == 0
    assert time.monotonic() - begin < 15
    print("ok: the server ends without the collector")


def main():
    binary = sys.argv[1]
    check_spans(binary)
    with tempfile.TemporaryDirectory() as folder:
        check_bad_collectors(binary, folder)


if __name__ == "__main__":
    main()
