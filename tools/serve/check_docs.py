#!/usr/bin/env python3
"""Runs the Python of docs/clients/*.md against `dsv4 serve demo`: blocks marked python, in the environment of their page
(tools/check_serve.sh), with what the page exports. Shell commands are those of tools/check_doc_commands.py.
Usage: check_docs.py BINARY VENV_FOLDER. Ends with "N passed, N failed"."""

import os
import pathlib
import re
import subprocess
import sys

from server import Server

DOCS = pathlib.Path(__file__).parents[2] / "docs/clients"
PAGES = {"openai.md": "new", "anthropic.md": "new", "langchain.md": "langchain"}
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXPORT = re.compile(r"^export (\w+)=(\S*)", re.MULTILINE)


def run_page(page, environment, venvs, server):
    """One line for each block; how many failed."""
    failed = 0
    text = (DOCS / page).read_text().replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
    text = text.replace("localhost:8000", f"localhost:{server.port}")
    variables = os.environ | dict(EXPORT.findall(text))
    blocks = BLOCK.findall(text)
    for number, code in enumerate(blocks, 1):
        done = subprocess.run([venvs / environment / "bin/python", "-c", code], capture_output=True, text=True, timeout=300,
                              env=variables)
        good = done.returncode == 0 and done.stdout.strip()
        failed += not good
        print(f"{'ok    ' if good else 'FAILED'} {page}, block {number}" +
              ("" if good else f": {(done.stderr or done.stdout).strip()[-400:]}"), flush=True)
    return len(blocks), failed


def main():
    binary, venvs = sys.argv[1], pathlib.Path(sys.argv[2]).absolute()
    server = Server(binary)
    counts = [run_page(page, environment, venvs, server) for page, environment in PAGES.items()]
    server.stop()
    failed = sum(bad for _, bad in counts)
    print(f"{sum(blocks for blocks, _ in counts) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
