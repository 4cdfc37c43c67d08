#!/usr/bin/env python3
"""Runs the commands of the pages that users read with the bundled model: README.md, and what mkdocs.yml has under "Use it"
and "Serve it".

  ```bash      run by bash as it stands; every command must succeed and the block must print something
  ```console   lines after "$ " are run; what they print is what the block shows, but for white space; a block that shows
               nothing is run like one of bash

A block with <!-- not run: REASON --> on the line above is not run: it needs a GPU, a model of many GB, a program that the
machine may lack, or changes the machine. tools/doc_commands_not_run.txt has the number of these for each page, which may
only shrink. A block without a language whose lines are commands is an error, so that none escapes.

The blocks of a page run one after the other in one folder, which has links to what the repository has, build/run/bin/dsv4,
and dsv4 on the PATH. A server's port 8000 becomes a free one, and curl waits until the server there is ready. What a page
exports, later blocks have. A page of docs/clients finds a server.

Usage: check_doc_commands.py BINARY [PAGE ...]. Prints a line for each block; ends with "N passed, N failed, N not run"."""

import dataclasses
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
NOT_RUN = "tools/doc_commands_not_run.txt"
REASONS = ("a GPU", "a large model", "the network", "another program", "installs", "the whole build", "minutes")
BLOCK = re.compile(r"(?:^<!-- not run: (?P<reason>.*?) -->\n)?^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^(\$ |dsv4 |build/\S+/dsv4 |curl |cmake |pip |apt |tools/\S+ |\./\w+|podman |docker |echo )", re.M)
EXPORT = re.compile(r"^export (\w+)=(\S*)", re.M)
# Files that pages name.
SAMPLES = {"story.txt": "One morning, Mira", "one.txt": "Long ago,", "two.txt": "One morning,",
           "prompts.jsonl": '"Long ago,"\n{"prompt": "One morning,"}\n', "recipe.txt": "experts k3\n",
           "text.txt": "Long ago, in a village by the sea, there was a fox. The sun was warm.\n"}
CURL = """#!/bin/bash
for i in $(seq 600); do {curl} --silent --fail --noproxy '*' localhost:{port}/ready >/dev/null && break; sleep 0.1; done
exec {curl} --fail-with-body --silent --show-error --noproxy '*' "$@"
"""


@dataclasses.dataclass
class Block:
    page: str
    line: int
    language: str
    text: str
    reason: str  # why it is not run; empty: it is


def blocks_of(page, text):
    return [Block(page, text.count("\n", 0, found.start("language")) + 1, found["language"], found["text"], found["reason"] or "")
            for found in BLOCK.finditer(text)]


def pages(root):
    sections = (root / "mkdocs.yml").read_text().partition("- Use it:")[2].partition("- Kernels:")[0]
    listed = [f"docs/{name}" for name in re.findall(r"[\w./-]+\.md", sections)]
    return ["README.md"] + [page for page in listed if (root / page).exists()]


def mistakes(blocks, allowed):
    """What is wrong with the marks, one line each. `allowed`: page -> number of blocks that are not run."""
    found, counts = [], {}
    for block in blocks:
        shell = block.language in ("bash", "console")
        if not block.language and COMMAND.search(block.text):
            found.append(f"{block.page}:{block.line}: commands in a block without a language, want bash or console")
        if block.reason and not shell:
            found.append(f"{block.page}:{block.line}: a mark on a block that is never run")
        if block.reason and block.reason not in REASONS:
            found.append(f"{block.page}:{block.line}: not run because of {block.reason!r}, want one of: {', '.join(REASONS)}")
        counts[block.page] = counts.get(block.page, 0) + bool(block.reason)
    for page in sorted(counts | allowed):
        have, most = counts.get(page, 0), allowed.get(page, 0)
        if have > most:
            found.append(f"{page}: {have} blocks are not run, {NOT_RUN} allows {most}")
        elif have < most:
            found.append(f"{NOT_RUN}: {page} has {have} blocks that are not run, and not {most} any more: lower the number")
    return found


def commands_and_output(block):
    """The script of a block, and what it shows; None: nothing."""
    if block.language == "bash":
        return block.text, None
    commands, shown, continues = [], [], False
    for line in block.text.splitlines():
        if line.startswith("$ ") or continues:
            commands.append(line.removeprefix("$ "))
            continues = line.endswith("\\")
        else:
            shown.append(line)
    return "\n".join(commands) + "\n", "\n".join(shown) or None


class Workplace:
    """The folder of a page, and its port."""

    def __init__(self, folder, binary, page):
        self.folder, self.page = pathlib.Path(folder), page
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.variables = {}
        for path in ROOT.iterdir():
            if path.name not in ("build", ".git"):
                (self.folder / path.name).symlink_to(path)
        (self.folder / "build/run/bin").mkdir(parents=True)
        (self.folder / "build/run/bin/dsv4").symlink_to(binary)
        (self.folder / "build/path").mkdir()
        (self.folder / "build/path/dsv4").symlink_to(binary)
        real = subprocess.run(["sh", "-c", "command -v curl"], capture_output=True, text=True).stdout.strip()
        wrapper = self.folder / "build/path/curl"
        wrapper.write_text(CURL.format(curl=real or "no-curl", port=self.port))
        wrapper.chmod(0o755)
        for name, text in SAMPLES.items():
            (self.folder / name).write_text(text)
        self.server = None
        if page.startswith("docs/clients/"):
            self.server = subprocess.Popen([binary, "serve", "demo", "--port", str(self.port)], stdout=subprocess.DEVNULL,
                                           stderr=subprocess.DEVNULL)

    def close(self):
        if self.server:
            self.server.kill()
            self.server.wait()

    def with_port(self, text):
        text = re.sub(r"\b(localhost|127\.0\.0\.1):8000\b", rf"\1:{self.port}", text)
        text = re.sub(r"--port 8000\b", f"--port {self.port}", text)
        return re.sub(r"(dsv4 serve demo)(?! --port)", rf"\1 --port {self.port}", text)

    def run(self, block):
        """What is wrong; None: nothing."""
        script, shown = commands_and_output(block)
        script = self.with_port(script)
        self.variables |= dict(EXPORT.findall(script))
        environment = os.environ | self.variables | {"PATH": f"{self.folder}/build/path:{os.environ['PATH']}",
                                                     "HOME": str(self.folder), "OMP_WAIT_POLICY": "passive"}
        with tempfile.TemporaryFile("w+") as out:  # a server that keeps running would keep a pipe open
            child = subprocess.Popen(["bash", "-euo", "pipefail", "-c", script], cwd=self.folder, env=environment, text=True,
                                     stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                status = child.wait(timeout=300)
            except subprocess.TimeoutExpired:
                return "no end after 300 s"
            finally:
                try:
                    os.killpg(child.pid, signal.SIGKILL)  # the servers that it started
                except ProcessLookupError:
                    pass
            out.seek(0)
            printed = out.read()
        if status != 0:
            return f"exit status {status}: {printed.strip()[-600:]}"
        if shown is not None and "".join(shown.split()) != "".join(printed.split()):
            return f"prints {printed.strip()[-600:]!r}"
        if not printed.strip() and not EXPORT.search(script):
            return "prints nothing"
        return None


def run_page(binary, page, blocks):
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        place = Workplace(folder, binary, page)
        for block in blocks:
            problem = place.run(block)
            failed += problem is not None
            print(f"{'FAILED' if problem else 'ok    '} {page}:{block.line}{f': {problem}' if problem else ''}", flush=True)
        place.close()
    return failed


def allowed_marks():
    lines = (ROOT / NOT_RUN).read_text().splitlines()
    return {line.split()[1]: int(line.split()[0]) for line in lines if line and not line.startswith("#")}


def main():
    binary = pathlib.Path(sys.argv[1]).resolve()
    wanted = sys.argv[2:] or pages(ROOT)
    blocks = [block for page in wanted for block in blocks_of(page, (ROOT / page).read_text())]
    allowed = {page: count for page, count in allowed_marks().items() if page in wanted}
    wrong = mistakes(blocks, allowed)
    for line in wrong:
        print("FAILED", line)
    failed, run = len(wrong), 0
    for page in wanted:
        here = [one for one in blocks if one.page == page and one.language in ("bash", "console") and not one.reason]
        run += len(here)
        failed += run_page(binary, page, here) if here else 0
    print(f"{run + len(wrong) - failed} passed, {failed} failed, {sum(bool(one.reason) for one in blocks)} not run")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
