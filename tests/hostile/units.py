"""Damaged files of stored prefixes: those of `run --prompt-cache` and of `serve --disk-cache`.

Bits and lengths change; a field of the header changes, with the header's hash made right again; a file becomes a pipe, a
folder, a device or another file. A prompt is then answered as without the file, or an error says what is wrong with it,
and the file stays as it was. A server computes again what a damaged file of its folder held.
"""

import ctypes
import ctypes.util
import http.client
import json
import os
import shutil
import signal
import struct

from outcome import Run, execute
from serving import port_of

FIELDS = {"version": (8, 4), "header_bytes": (12, 4), "fingerprint": (16, 1), "key": (64, 1), "parent": (80, 1),
          "position": (96, 8), "run": (104, 4), "block_bytes": (108, 4), "checkpoint_bytes": (112, 8),
          "step": (120, 4), "flags": (124, 4), "first offset": (128, 8), "first length": (136, 8),
          "second length": (168, 8)}  # place and size, of dsv4/cache/unit_file.cc
HEADER = 256  # bytes before its hash
RUN = ["run", "demo", "-n", "2", "--temp", "0", "--quiet", "--deterministic", "--context", "2048"]
SERVE = ["serve", "demo", "--port", "0", "--threads", "1", "--context", "2048", "--checkpoint-interval", "256",
         "--prefix-checkpoints", "2", "--ram-cache", "0.05", "--deterministic", "--max-batch", "1"]


def header_hash(data):
    """XXH3 of 128 bits, as the files have it; nothing where the library is not at hand."""
    name = ctypes.util.find_library("xxhash")
    if name is None:
        return None

    class Hash(ctypes.Structure):
        _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]
    function = ctypes.CDLL(name).XXH3_128bits
    function.restype, function.argtypes = Hash, [ctypes.c_char_p, ctypes.c_size_t]
    value = function(bytes(data), len(data))
    return struct.pack(">QQ", value.high, value.low)


def damage(rng, path):
    """Changes a file of the cache; what was done."""
    data = bytearray(path.read_bytes())
    kind = rng.choice(["field"] * 4 + ["flip"] * 3 + ["cut", "append", "swap", "other", "empty", "pipe", "folder",
                                                     "loop", "dangling", "zeros", "null", "sparse"])
    what = kind
    if kind == "field":
        name, (at, size) = rng.choice(sorted(FIELDS.items()))
        value = rng.choice([0, 1, 64, 128, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 62, 1 << 63, (1 << 64) - 1])
        data[at:at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
        digest = header_hash(data[:HEADER])
        if digest and rng.random() < 0.9:
            data[HEADER:HEADER + 16] = digest
        what = f"{name} {value}"
    elif kind == "flip":
        for _ in range(rng.choice([1, 1, 10])):
            data[rng.randrange(rng.choice([272, len(data)]))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[rng.randrange(len(data)):]
    elif kind == "append":
        data += bytes(rng.choice([1, 64, 5000]))
    elif kind == "swap":
        half = len(data) // 2
        data = data[half:] + data[:half]
    elif kind == "other":
        data = bytearray(b"{\"a\": 1}" * rng.choice([1, 1000]))
    elif kind == "empty":
        data = bytearray()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 1 << 40)
    elif kind in ("loop", "dangling", "zeros", "null"):
        path.symlink_to({"loop": path.name, "dangling": "/nowhere/at/all", "zeros": "/dev/zero", "null": "/dev/null"}[kind])
    else:
        path.write_bytes(data)
    return what


def prompt_cache(rng, place):
    path = place.folder / "cache"
    shutil.copy(place.units / "cache", path)
    what = damage(rng, path)
    kept = path.read_bytes() if path.is_file() and path.stat().st_size < 1 << 30 else None

    def judge(done):
        if done.code == 0:
            return "" if done.out == (place.units / "answer").read_bytes() else "another answer than without the file"
        return "" if kept is None or path.read_bytes() == kept else "a file that was refused is changed"
    return what, [Run([*RUN, "--prompt-cache", path, "-f", place.units / "text"], judge=judge, shows_model_text=True)]


def ask(port, text):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": text, "temperature": 0, "max_tokens": 2}),
                       {"Content-Type": "application/json"})
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    if answer.status != 200:
        raise OSError(f"status {answer.status}: {body}")
    return body["choices"][0]["text"]


def asks(text, want):
    """A client that asks twice; `want`: of both answers."""
    def play(program):
        port = port_of(program)
        if port is None:
            return ""
        try:
            answers = [ask(port, text) for _ in range(2)]
            return "" if answers == [want, want] else f"answers {answers}, without the files {want!r}"
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            return f"a client: {error}"
        finally:
            os.kill(program.pid, signal.SIGTERM)
    return play


def disk_cache(rng, place):
    folder = place.folder / "disk"
    shutil.copytree(place.units / "disk", folder)
    inner = next(path for path in folder.iterdir() if path.is_dir())
    files = sorted(inner.glob("*.dpc"))
    what = [damage(rng, path) for path in rng.sample(files, rng.randint(1, len(files)))]
    if rng.random() < 0.3:
        odd = rng.choice([inner / "bad", inner / "lock", inner / ("f" * 32 + ".dpc"), inner / "x.tmp", folder / "y"])
        shutil.rmtree(odd) if odd.is_dir() else odd.unlink(missing_ok=True)
        rng.choice([odd.mkdir, lambda: os.mkfifo(odd), lambda: odd.symlink_to(odd.name), odd.touch])()
        what.append(odd.name)
    return ", ".join(what), [Run([*SERVE, "--disk-cache", folder],
                                 play=asks((place.units / "text").read_text(), (place.units / "served").read_text()))]


def prepare(binary, units, text):
    """A prompt, a file of its prefix, a folder with the units of a server, and the answers without them."""
    units.mkdir()
    (units / "text").write_bytes(text)
    words = [*RUN, "-f", units / "text"]
    (units / "answer").write_bytes(execute(binary, Run(words), units).out)
    execute(binary, Run([*words, "--prompt-cache", units / "cache"]), units)

    def play(program):
        (units / "served").write_text(ask(port_of(program), text.decode()))
        os.kill(program.pid, signal.SIGTERM)
    execute(binary, Run([*SERVE, "--disk-cache", units / "disk"], play=play), units)


def case(rng, place):
    kind = rng.choice([prompt_cache, prompt_cache, disk_cache])
    what, runs = kind(rng, place)
    return f"{kind.__name__} {what}", runs
