#!/usr/bin/env python3
"""Runs the scripts of all clients against `dsv4 serve`: one server with a scripted engine, one with the bundled model.
Prints a table of clients and scenarios. Usage: check_clients.py BINARY VENV_FOLDER [CLIENT ...]"""

import json
import pathlib
import subprocess
import sys
import tempfile

from server import Server, write_script

HERE = pathlib.Path(__file__).parent
# Environment (tools/check_serve.sh) and script.
CLIENTS = [("new", "openai"), ("old", "openai"), ("new", "anthropic"), ("old", "anthropic"), ("litellm", "litellm"),
           ("langchain", "langchain"), ("instructor", "instructor"), ("pydantic_ai", "pydantic_ai"), ("ollama", "ollama"),
           ("new", "agents"), ("new", "types")]
SCENARIOS = ["plain", "stream", "tools", "thinking", "error", "cancel", "20 in parallel", "format"]


def run_client(environment, script, urls):
    python = environment / "bin" / "python"
    done = subprocess.run([python, HERE / f"client_{script}.py", *urls], capture_output=True, text=True, timeout=600)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"client"')]
    if done.returncode != 0:
        rows.append({"client": script, "scenario": "script", "error": done.stderr.strip()[-500:]})
    return rows


def print_table(rows):
    clients = list(dict.fromkeys(row["client"] for row in rows))
    others = [row["scenario"] for row in rows if row["scenario"] not in SCENARIOS]
    columns = SCENARIOS + list(dict.fromkeys(others))
    cells = {(row["client"], row["scenario"]): row["error"] for row in rows}

    def mark(client, column):
        if (client, column) not in cells:
            return "-"
        error = cells[client, column]
        return "ok" if error is None else "n/a" if error.startswith("n/a") else "FAIL"
    width = max(map(len, clients))
    print(" " * width, " ".join(columns))
    for client in clients:
        print(client.ljust(width), " ".join(mark(client, column).ljust(len(column)) for column in columns))


def main():
    binary, venvs, wanted = sys.argv[1], pathlib.Path(sys.argv[2]).absolute(), sys.argv[3:]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        from scenarios import SCRIPT
        script = write_script(folder, SCRIPT)
        servers = [Server(binary, "--engine", f"script:{script}", "--max-batch", "8"), Server(binary)]
        for environment, client in CLIENTS:
            if not wanted or client in wanted:
                rows += run_client(venvs / environment, client, [server.url for server in servers])
        rows += [{"client": "dsv4 serve", "scenario": "SIGTERM", "error": None if status == 0 else f"status {status}"}
                 for status in (server.stop() for server in servers)]
    print_table(rows)
    failed = [row for row in rows if row["error"] and not row["error"].startswith("n/a")]
    for row in failed:
        print(f"FAIL {row['client']}, {row['scenario']}: {row['error']}")
    print(f"{len(rows) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
