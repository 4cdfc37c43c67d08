#!/usr/bin/env python3
"""`dsv4 chat` in a terminal, and as a client of servers. Usage: chat_terminal_test.py BINARY

A pseudo terminal plays the user: keys, pasted text, Ctrl-C. The engine answers from a script, and some servers are a
dozen lines of Python that misbehave."""

import http.server
import json
import os
import pathlib
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools" / "serve"))
from server import Server, give_up_after, write_script  # noqa: E402

# The first whose `match` occurs in the conversation, so what is said later stands first.
SCRIPT = [{"match": "ponder", "output": "Hm.</think>\n\nDone."},
          {"match": "silence", "output": ""},
          {"match": "endless", "output": "tick ", "repeat": 100000, "step_ms": 20},
          {"match": "escape", "output": "re\x1b[31md\x07"},
          {"match": "two\nlines", "output": "I saw two lines."},
          {"output": "Hello there."}]
failures = 0


def check(name, holds, detail=""):
    global failures
    print("ok    " if holds else "FAILED", name, "" if holds else repr(detail), flush=True)
    failures += not holds


class Terminal:
    """A program on a pseudo terminal."""

    def __init__(self, *command, type="xterm"):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM=type, LC_ALL="C.UTF-8")
            os.execv(command[0], command)
        self.seen = ""

    def type(self, keys):
        os.write(self.fd, keys.encode())

    def wait_for(self, text, seconds=30):
        """Everything up to `text`, which is then consumed."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            try:
                piece = os.read(self.fd, 1 << 16).decode(errors="replace") if ready else ""
            except OSError:  # the program has ended
                piece = ""
            if not piece:
                raise AssertionError(f"no {text!r} in {self.seen!r}")
            self.seen += piece
        before, self.seen = self.seen.split(text, 1)
        return before

    def wait_for_prompt(self):
        """Until the editor reads keys. Before that the terminal itself would take Ctrl-J for Enter, and the editor would
        find a zero byte where Ctrl-D was typed."""
        before = self.wait_for("> ")
        while termios.tcgetattr(self.fd)[3] & termios.ICANON:
            time.sleep(0.01)
        return before

    def status(self, seconds=30):
        """The exit status of a program that is about to leave; one that stays fails here, with what it showed."""
        shown, end = b"", time.monotonic() + seconds
        try:
            while select.select([self.fd], [], [], max(0, end - time.monotonic()))[0]:
                shown += os.read(self.fd, 1 << 16)
            os.kill(self.pid, signal.SIGKILL)
            raise AssertionError(f"no end after {seconds} s, the terminal shows {shown!r}")
        except OSError:  # the program has ended
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def plain_terminals(binary, script):
    """Terminals that would show a control sequence as text."""
    for kind in ("dumb", ""):
        terminal = Terminal(binary, "chat", "demo", "--engine", f"script:{script}", type=kind)
        before = terminal.wait_for_prompt()
        terminal.type("Hi\r")
        answered = terminal.wait_for("Hello there.")
        check(f"no sequence for TERM={kind!r}", "\x1b[?2004" not in before + answered, before + answered)
        terminal.wait_for_prompt()
        terminal.type("\x04")
        check(f"Ctrl-D leaves with TERM={kind!r}", terminal.status() == 0)


def keys(binary, script):
    terminal = Terminal(binary, "chat", "demo", "--engine", f"script:{script}")
    terminal.wait_for_prompt()
    terminal.type("two\nlines\r")  # Ctrl-J, then Enter
    terminal.wait_for("I saw two lines.")
    check("Ctrl-J begins a new line", True)
    terminal.wait_for_prompt()
    terminal.type("\x1b[200~two\rlines\x1b[201~")  # as terminals send what is pasted
    time.sleep(0.2)
    terminal.type("\r")
    terminal.wait_for("I saw two lines.")
    check("pasted line ends do not send the text", True)
    terminal.wait_for_prompt()
    terminal.type("\x1b[A\r")  # the arrow up
    terminal.wait_for("I saw two lines.")
    check("the arrow brings back what was written", True)
    terminal.wait_for_prompt()
    terminal.type("X\x01esca\x05\x7fpe\x1b[D\x1b[C\r")  # Ctrl-A, Ctrl-E, backspace, arrows
    shown = terminal.wait_for("d\r\n")
    check("control bytes of the model are not printed", "re[31m" in shown and "\x07" not in shown, shown)
    terminal.wait_for_prompt()
    terminal.type("endless\r")
    terminal.wait_for("tick tick")
    terminal.type("\x03")
    terminal.wait_for_prompt()
    terminal.type("/stats\r")
    stats = terminal.wait_for("tokens/s")
    check("Ctrl-C stops an answer", "prompt tokens" in stats, stats)
    terminal.wait_for_prompt()
    terminal.type("silence\r")
    terminal.wait_for_prompt()
    terminal.type("/stats\r")
    terminal.wait_for("0 tokens")
    stats = terminal.wait_for_prompt()
    check("an answer without a token has no times", "after" not in stats, stats)
    terminal.type("/think hide\r")
    terminal.wait_for_prompt()
    terminal.type("/think low\r")
    terminal.wait_for_prompt()
    terminal.type("ponder\r")
    shown = terminal.wait_for("Done.")
    check("hidden thinking is one line", "thought for" in shown and "Hm." not in shown, shown)
    terminal.wait_for_prompt()
    terminal.type("half a text\x03")
    terminal.wait_for("again leaves")
    terminal.wait_for_prompt()
    terminal.type("\x03")
    check("two Ctrl-C leave", terminal.status() == 0)
    ended = Terminal(binary, "chat", "demo", "--engine", f"script:{script}")
    ended.wait_for_prompt()
    ended.type("\x04")
    check("Ctrl-D leaves", ended.status() == 0)


def talk(binary, url, lines, *options, environment=None):
    return subprocess.run([binary, "chat", "--url", url, *options], input=lines, capture_output=True, text=True, timeout=60,
                          env=os.environ | (environment or {}))


def remote(binary, script):
    server = Server(binary, "--engine", f"script:{script}", environment={"DSV4_API_KEY": "a-secret"})
    for url in (server.url, server.url + "/", server.url + "/v1"):
        done = talk(binary, url, "Hi\n/tokens\nponder\n", "--key", "a-secret", "--temp", "0.5", "--seed", "1")
        check(f"--url {url.split(':')[-1]}", done.stdout == "Hello there.\nHello there.\n" or done.stdout.startswith(
            "Hello there.\n"), done)
    done = talk(binary, server.url, "/think low\nponder\n", environment={"DSV4_API_KEY": "a-secret"})
    check("thinking over --url", done.stdout == "Hm.\n\nDone.\n", done)
    done = talk(binary, server.url, "Hi\n", "--key", "wrong-secret")
    check("a wrong key", done.returncode == 1 and "401" in done.stderr and done.stderr.count("\n") == 1, done)
    done = talk(binary, server.url, "Hi\n", "nothing", "--key", "a-secret")
    check("a wrong model", done.returncode == 1 and "no model 'nothing'" in done.stderr, done)
    terminal = Terminal(binary, "chat", "--url", server.url, "--key", "a-secret")
    terminal.wait_for_prompt()
    terminal.type("endless\r")
    terminal.wait_for("tick tick")
    terminal.type("\x03")
    terminal.wait_for_prompt()
    terminal.type("/tokens\r")
    tokens = terminal.wait_for("of 32768 tokens")
    check("Ctrl-C stops an answer of a server, /tokens counts there", re.search(r"\d+ $", tokens), tokens)
    terminal.wait_for_prompt()
    terminal.type("\x04")
    check("Ctrl-D leaves --url", terminal.status() == 0)
    check("the server ends", server.stop() == 0)
    done = talk(binary, server.url, "Hi\n")
    check("no server", done.returncode == 1 and "cannot connect" in done.stderr and done.stderr.count("\n") == 1, done)
    for url in ("nowhere", "ftp://x", "http://", "http://x:y", "http://[::1", "http://a b"):
        done = talk(binary, url, "Hi\n")
        check(f"--url {url}", done.returncode == 1 and done.stderr.count("\n") == 1, done)
    done = subprocess.run([binary, "chat", "--url", "http://x", b"\xff"], input=b"Hi\n", capture_output=True, timeout=60)
    check("a model's name that is no UTF-8", done.returncode == 1 and b"is not valid UTF-8" in done.stderr, done)
    done = talk(binary, "http://x", "", "--context", "100")
    check("--url excludes options of a model here", done.returncode == 2 and "--url" in done.stderr, done)


class Misbehaving(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answers = {}

    def do_GET(self):
        self.reply(200, "application/json", b'{"data": [{"id": "m"}]}')

    def do_POST(self):
        size = int(self.headers["Content-Length"])
        text = json.loads(self.rfile.read(size))["messages"][-1]["content"]
        self.reply(*self.answers[text])

    def reply(self, status, kind, body, length=None):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *_):
        pass


def event(delta):
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\r\n\r\n"


def cpu_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def other_servers(binary):
    done = b"data: [DONE]\n\n"
    Misbehaving.answers = {
        "reasoning": (200, "text/event-stream", b": hi\n\n" + event({"reasoning": "R"}) + event({"content": "C"}) + done),
        "nulls": (200, "text/event-stream", event({"content": None}) + b"data:{\"choices\":[]}\n\n" + event({"content": "x"})),
        "cut": (200, "text/event-stream", event({"content": "half"}), 1000),
        "error": (200, "text/event-stream", b'data: {"error": {"message": "out of \\u001b[31mluck"}}\n\n'),
        "plain": (200, "application/json", b'{"choices": []}'),
        "broken": (200, "text/event-stream", b"data: {\n\n"),
        "teapot": (418, "text/html", b"<h1>no</h1>"),
        "endless": (200, "text/event-stream", b"x" * (65 << 20)),
    }
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Misbehaving)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    check("reasoning by another name", talk(binary, url, "reasoning\n").stdout == "R\n\nC\n")
    check("nulls and an end without [DONE]", talk(binary, url, "nulls\n").stdout == "x\n")
    for text, what in (("cut", "before its answer was complete"), ("error", "out of ?[31mluck"), ("plain", "without a stream"),
                       ("broken", "no JSON objects"), ("teapot", "status 418")):
        done = talk(binary, url, text + "\n")
        check(f"a server that answers: {text}", done.returncode == 1 and what in done.stderr and
              done.stderr.count("\n") == 1, done)
    before = cpu_of_children()
    talked, spent = talk(binary, url, "endless\n"), cpu_of_children() - before
    check("an event without an end is read once", "an event without an end" in talked.stderr and spent < 3, (talked, spent))
    with tempfile.TemporaryDirectory() as folder:
        for messages in ([1], [None], [{}], [{"role": 1}]):
            saved = pathlib.Path(folder) / "saved"
            saved.write_text(json.dumps({"messages": messages}))
            talked = talk(binary, url, f"/load {saved}\n/retry\n")
            check(f"/load of {messages}", talked.returncode == 1 and "want messages that are objects" in talked.stderr, talked)
    server.shutdown()


def main():
    binary = os.path.abspath(sys.argv[1])
    give_up_after(300)
    with tempfile.TemporaryDirectory() as folder:
        script = write_script(folder, SCRIPT)
        plain_terminals(binary, script)
        keys(binary, script)
        remote(binary, script)
    other_servers(binary)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
