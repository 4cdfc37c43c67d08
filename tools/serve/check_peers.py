#!/usr/bin/env python3
"""Programs of others that judge a server, against `dsv4 serve demo` without further options:

    check_peers.py BINARY VENVS      VENVS: folder with the environments `comply` and `aiperf`, where they could be made

llm-comply (three APIs) must pass all but what this model cannot do, images, and what this server allows, a request
without a model. AIPerf must finish its load over chat and completions with every request answered."""

import json
import pathlib
import subprocess
import sys
import tempfile

from server import Server

MODEL = pathlib.Path(__file__).resolve().parents[2] / "models/demo"
FORMATS = ("openai-chat", "anthropic", "open-responses")
# Its names for them, by the end of the id.
EXPECTED = ("image-input", "error-handling")
LEAST_PASSED = 6  # of an API's tests: others are skipped for a model that is not known to reason


def version_of(environment, package):
    words = ["-c", f"import importlib.metadata; print(importlib.metadata.version('{package}'))"]
    return subprocess.run([environment / "bin/python", *words], capture_output=True, text=True, check=True).stdout.strip()


def check_comply(environment, url, model):
    """`model`: tests of reasoning are left out where the name is of no model that the program knows to reason."""
    wrong = []
    for kind in FORMATS:
        done = subprocess.run([environment / "bin/llm-comply", "-u", url + "/v1", "-k", "none", "-m", model,
                               "--format", kind, "--json"], capture_output=True, text=True, timeout=300)
        results = json.loads(done.stdout)["results"]
        assert len(results) >= 9, results
        for result in results:
            if result["status"] in ("passed", "skipped", "warning") or result["id"].endswith(EXPECTED):
                continue
            wrong.append(f"{kind}, {result['id']}: {result['status']} {result.get('errors')}")
        passed = sum(result["status"] == "passed" for result in results)
        if passed < LEAST_PASSED:
            wrong.append(f"{kind}: {passed} of {len(results)} tests passed, want {LEAST_PASSED}")
        rest = ", ".join(f"{result['id']} {result['status']}" for result in results
                         if result["status"] != "passed")
        print(f"llm-comply, {kind}, model {model}: {passed} of {len(results)} passed; {rest}", flush=True)
    return wrong


def check_aiperf(environment, url, folder):
    wrong = []
    for kind, streaming in (("chat", True), ("chat", False), ("completions", True)):
        out = pathlib.Path(folder) / f"{kind}-{streaming}"
        done = subprocess.run(
            [environment / "bin/aiperf", "profile", "--model", "demo", "--tokenizer", MODEL, "--url", url,
             "--endpoint-type", kind, *(["--streaming"] if streaming else []), "--concurrency", "4",
             "--request-count", "12", "--synthetic-input-tokens-mean", "120", "--output-tokens-mean", "24",
             "--ui-type", "none", "--artifact-dir", out],
            capture_output=True, text=True, timeout=400, cwd=folder)
        if done.returncode != 0:
            wrong.append(f"aiperf, {kind}: status {done.returncode}: {done.stdout[-600:]}")
            continue
        report = json.loads((out / "profile_export_aiperf.json").read_text())
        served = json.loads((out / "server_metrics_export.json").read_text())
        if report["request_count"]["avg"] != 12 or report["error_summary"]:
            wrong.append(f"aiperf, {kind}: {report['request_count']}, {report['error_summary']}")
        if streaming and report["time_to_first_token"]["p50"] <= 0:
            wrong.append(f"aiperf, {kind}: no time to the first token")
        if "dsv4_ttft_seconds" not in served["metrics"]:
            wrong.append(f"aiperf, {kind}: it did not read /metrics")
        print(f"ok: aiperf, {kind}{', streams' if streaming else ''}", flush=True)
    return wrong


def main():
    binary, venvs = sys.argv[1], pathlib.Path(sys.argv[2]).absolute()
    wrong = []
    if (venvs / "comply/packages").exists():
        print("llm-comply", version_of(venvs / "comply", "llm-comply"))
        server = Server(binary)
        wrong += check_comply(venvs / "comply", server.url, "demo")
        server.stop()
        server = Server(binary, "--alias", "deepseek-r1", "claude-4", "gpt-5")
        for model in ("deepseek-r1", "claude-4"):
            wrong += check_comply(venvs / "comply", server.url, model)
        server.stop()
    else:
        print("skipped: llm-comply (not to be had from PyPI)")
    if (venvs / "aiperf/packages").exists():
        print("aiperf", version_of(venvs / "aiperf", "aiperf"))
        server = Server(binary)
        with tempfile.TemporaryDirectory() as folder:
            wrong += check_aiperf(venvs / "aiperf", server.url, folder)
        server.stop()
    else:
        print("skipped: aiperf (not to be had from PyPI)")
    for line in wrong:
        print("FAIL", line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
