"""`dsv4 chat` with hostile users and servers: commands and files of any content through a pipe, keys and bytes that no
keyboard sends on a terminal, and servers that answer nonsense.

Bytes of a model or of a server do not move the cursor; a terminal is left as it was; the program ends by itself.
"""

import itertools
import json
import os
import select
import signal
import socket
import termios
import threading
import time

from folders import STRANGE, change_json, json_text
from outcome import Run

CALL = "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"\x1b[2J\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
SCRIPT = [{"match": "escape", "output": "re\x1b[31md\x07\x9b5m\u202e"}, {"match": "call", "output": CALL},
          {"match": "ponder", "output": "Hm.</think>\n\nDone."}, {"match": "long", "output": "tick ", "repeat": 200},
          {"output": "Hello there."}]
NAMES = ["", "-", ".", "/", "/dev/null", "/dev/full", "/dev/zero", "/nowhere/x", "x" * 5000, "loop", "saved", "odd",
         "big", "pipe", "a\x1b[2J", "\xff"]
WORDS = ["Hello", "escape", "ponder", "call", "long", "<｜User｜>", "\"\"\"", "\x00", "\x1b[31m", "\u202e",
         "e\u0301" * 300, "x" * 9000, "/set temperature nan", "/set seed -1", "/set top_k 1e30", "/set",
         "/set temperature 0x1p3", "/set min_p 2", "/think", "/think zz", "/retry", "/undo", "/undo", "/edit",
         "/edit escape", "/tokens", "/stats", "/help", "/", "//", "/quit now", "/system \x1b[2J", "/system", "/\x1b[2J"]
CHAT = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "ponder"},
                     {"role": "assistant", "content": "c", "reasoning_content": "r"}], "thinking": {"type": "enabled"}}
KEYS = [b"\x00", b"\x01", b"\x02", b"\x05", b"\x06", b"\x08", b"\x0b", b"\x0e", b"\x10", b"\x12", b"\x14", b"\x15",
        b"\x16", b"\x17", b"\x19", b"\x1b", b"\x1b[A", b"\x1b[B", b"\x1b[C", b"\x1b[D", b"\x1b[200~", b"\x1b[201~",
        b"\x1b[3~", b"\x1b[1;5C", b"\x1b[99999~", b"\x1bOP", b"\xff\xfe", b"\xc3", b"\xe2\x82", "\u202e".encode(),
        "\u0301".encode(), "\U0001f600".encode(), b"\x9b31m", b"\x7f", b"\t", b"\n", b"\r", b"escape", b"hello",
        b"/tokens", b"a" * 3000, b"\x03", b"\x1bb\x1bd", b"\x1b[<0;1;1M"]


def odd_chat(rng):
    value = json.loads(json.dumps(CHAT))
    for _ in range(rng.choice([0, 1, 3])):
        try:
            change_json(rng, value, STRANGE + [["x"], {"role": "user"}, [5], [{"role": "user", "content": None}]])
        except (IndexError, TypeError):
            break
    data = bytearray(json_text(value))
    if rng.random() < 0.2:
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def write_files(rng, folder):
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    (folder / "odd").write_bytes(odd_chat(rng))
    (folder / "big").write_bytes(b"word " * 200_000)
    script = folder / "script"
    script.write_text("".join(json.dumps(line) + "\n" for line in SCRIPT))
    return script


def lines(rng):
    for _ in range(rng.randint(1, 12)):
        kind = rng.randrange(4)
        if kind == 0:
            yield rng.choice(["/load ", "/load ", "/save ", "/file "]) + rng.choice(["odd", "odd", rng.choice(NAMES)])
        elif kind == 1:
            yield "".join(rng.choice(WORDS) for _ in range(rng.randint(1, 4)))
        else:
            yield rng.choice(WORDS)


def text_of(rng):
    text = "\n".join(line for line in lines(rng) if not line.startswith(("/save pipe", "/file pipe")))
    return text.encode("utf-8", "surrogateescape") + rng.choice([b"", b"\n"])


def piped(rng, place):
    script = write_files(rng, place.folder)
    return "", [Run(["chat", "demo", "--engine", f"script:{script}", "--context", rng.choice(["64", "2048"])],
                    stdin=text_of(rng))]


def typed(rng, place):
    script = write_files(rng, place.folder)
    keys = [rng.choice(KEYS) for _ in range(rng.randint(3, 40))]

    def play(program):
        before = termios.tcgetattr(program.terminal)
        while not program.has_ended() and termios.tcgetattr(program.terminal)[3] & termios.ICANON:
            time.sleep(0.01)  # until then a key may be a signal that ends it

        def drain(seconds):
            while select.select([program.terminal], [], [], seconds)[0]:
                try:
                    if not os.read(program.terminal, 1 << 16):
                        return
                except OSError:
                    return
        end = time.monotonic() + 60
        leave = [b"\x1b[201~", b"\r", b"\x03", b"\x03", b"\x04"]  # what was typed may begin a paste or a search
        for number, key in enumerate(itertools.chain(keys, itertools.cycle(leave))):
            if program.has_ended() or time.monotonic() > end:
                break
            os.write(program.terminal, key)
            drain(0.005 if number < len(keys) else 0.1)
        if not program.has_ended():
            os.kill(program.pid, signal.SIGKILL)
            return f"does not end after {keys!r}"
        return "" if termios.tcgetattr(program.terminal)[:4] == before[:4] else "the terminal is not as it was"
    return repr(keys)[:150], [Run(["chat", "demo", "--engine", f"script:{script}"], play=play, in_terminal=True,
                                  environment={"TERM": rng.choice(["xterm", "dumb", "", "nonsense", "vt100"]),
                                               "LC_ALL": rng.choice(["C.UTF-8", "C", "zz", ""])},
                                  judge=lambda done: f"exit code {done.code}" if done.code not in (0, 130) else "")]


def answer_of(rng):
    """What a server sends for any request."""
    event = {"id": "x", "choices": [{"index": 0, "delta": {"content": "Hi \x1b[2J", "reasoning_content": "r"}}],
             "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    if rng.random() < 0.7:
        change_json(rng, event)
    events = [b"data: " + json_text(event) + b"\n\n" for _ in range(rng.randint(1, 3))]
    events += [rng.choice([b"data: [DONE]\n\n", b"", b"data:\n", b"data: {", b": x\n", b"x" * 3_000_000])]
    models = {"data": [{"id": rng.choice(["m", "\x1b[2J", "x" * 5000, "\ud800"])}]}
    if rng.random() < 0.5:
        change_json(rng, models)
    body = rng.choice([b"".join(events)] * 3 + [json_text(models)] * 2 + [b"", b"null", rng.randbytes(200), b"[" * 100_000])
    status = rng.choice([b"200 OK"] * 8 + [b"404 \x1b[2J", b"500 x", b"99 y", b"200"])
    kind = rng.choice([b"application/json", b"text/event-stream"])
    length = rng.choice([b"", b"Content-Length: %d\r\n" % len(body), b"Content-Length: 99999999999\r\n",
                         b"Content-Length: x\r\n"])
    head = rng.choice([b""] * 8 + [b"X: " + b"y" * 100_000 + b"\r\n", b"\x1b\x00: 1\r\n"])
    whole = b"HTTP/1.1 " + status + b"\r\nContent-Type: " + kind + b"\r\n" + length + head + b"\r\n" + body
    return whole if rng.random() < 0.9 else whole[:rng.randrange(len(whole))]


class NonsenseServer(threading.Thread):
    """Answers a few connections and ends."""

    def __init__(self, answers):
        super().__init__(daemon=True)
        self.socket, self.answers = socket.create_server(("127.0.0.1", 0)), answers
        self.port = self.socket.getsockname()[1]
        self.start()

    def run(self):
        for answer in self.answers:
            try:
                connection, _ = self.socket.accept()
                with connection:
                    connection.settimeout(10)
                    connection.recv(1 << 16)
                    connection.sendall(answer)
            except OSError:
                pass
        self.socket.close()


def remote(rng, place):
    write_files(rng, place.folder)
    good = b"HTTP/1.1 200 OK\r\n\r\ndata: {\"choices\": [{\"delta\": {\"content\": \"Hello\"}}]}\n\ndata: [DONE]\n\n"
    server = NonsenseServer([rng.choice([good, answer_of(rng), answer_of(rng)]) for _ in range(6)])
    name = rng.choice([[], ["m"], ["m"], [b"\xff"], ["\x1b[2J"]])
    return "", [Run(["chat", "--url", f"http://127.0.0.1:{server.port}", *name], stdin=text_of(rng))]


def case(rng, place):
    kind = rng.choice([piped, typed, remote])
    what, runs = kind(rng, place)
    return f"{kind.__name__} {what}", runs
