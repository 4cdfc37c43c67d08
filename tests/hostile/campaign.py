#!/usr/bin/env python3
"""Runs dsv4 on damaged model folders and classifies how it ends.

    tests/hostile/campaign.py [--binary build/cpu/bin/dsv4] [--count 200] [--seed 1] [--seconds 0] [--keep FOLDER]

Every folder is a copy of a model with one to three random changes: a value of config.json, tokenizer.json,
generation_config.json, the ledger or the safetensors header replaced, removed or doubled; bytes of a file flipped, cut
or appended; numbers of a tensor overwritten. `inspect`, `run` and one more command then have to end by themselves,
within a time and memory limit, and an error has to be one short line without control characters or words of a library.
The same seed gives the same folders. With --seconds the campaign ends after that time. Prints one line per finding
and a summary; exit code 1 when there was a finding.
"""

import argparse
import collections
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MEMORY = 8 << 30
TIMEOUT = 60
LONGEST_LINE = 700
# Texts of libraries and of checks that are meant for programmers.
INTERNAL = ("json.exception", "std::", "basic_string", "vector::", "_cpu.cc:", ".h:", "what():")
STRANGE = [None, True, False, -1, 0, 1, 2, 7, 2**31, 2**53, 2**63, 2**64, -2**63, 1.5, -0.0, 1e308, 1e-320, "", "x",
           "\x1b[2J\x1b]0;t\x07", "a\nb", "\x00", "\u202e\u0085", "x" * 5000, [], {}, [[]], {"a": {"b": []}}, [0] * 3000,
           "../../etc/passwd", "(a+)+$", "[", "F32", "BF16", "I64", "F8_E8M0", [0], [0, 0], [-1, 4], [2**40, 2**40]]
NUMBERS = [struct.pack("<f", float("nan")), struct.pack("<f", float("inf")), b"\xc0\x7f", b"\x7f", b"\xff", b"\x00",
           struct.pack("<q", 2**40), struct.pack("<f", 3e38)]


def places(value, path=()):
    """Every path of a JSON value, containers included; long lists and objects by a sample."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    items = list(items)
    for key, below in items if len(items) <= 60 else items[:30] + items[-30:]:
        yield from places(below, path + (key,))


def change_json(rng, value):
    """One random change in place; returns what was done."""
    path = rng.choice([p for p in places(value) if p])
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    key, kind = path[-1], rng.randrange(8)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, dict):
        parent[rng.choice(["\x1b[31mkey\n", "", "x" * 3000, "unknown"])] = parent.pop(key)
    elif kind == 2 and isinstance(parent, list):
        parent.append(parent[key])
    elif kind == 3 and isinstance(parent[key], int):
        parent[key] = parent[key] * 2 + rng.choice([-1, 0, 1])
    else:
        parent[key] = rng.choice(STRANGE)
    return f"{'.'.join(map(str, path))[:60]} kind {kind}"


class Folder:
    """A copy of a model folder in which only changed files are copied."""

    def __init__(self, source, path):
        self.source, self.path = source, path
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        for file in source.iterdir():
            (path / file.name).symlink_to(file.resolve())

    def read(self, name):
        return (self.path / name).read_bytes()

    def write(self, name, data):
        (self.path / name).unlink(missing_ok=True)
        (self.path / name).write_bytes(data)

    def files(self):
        return sorted(f.name for f in self.path.iterdir() if f.suffix in (".json", ".safetensors"))


def change_json_file(rng, folder):
    names = [n for n in folder.files() if n.endswith(".json")]
    name = rng.choice(names)
    try:
        value = json.loads(folder.read(name))
        done = change_json(rng, value)
        folder.write(name, json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass"))
    except (ValueError, IndexError):  # an earlier change left nothing to change
        return f"{name} unchanged"
    return f"{name}: {done}"


def change_header(rng, folder):
    data = folder.read("model.safetensors")
    try:
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + size])
        done = change_json(rng, header)
    except (ValueError, IndexError, struct.error):
        return "header unchanged"
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.write("model.safetensors", struct.pack("<Q", len(text)) + text + data[8 + size:])
    return f"header: {done}"


def change_numbers(rng, folder):
    data = bytearray(folder.read("model.safetensors"))
    try:
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + size])
        name = rng.choice([n for n in header if n != "__metadata__"])
        begin, end = header[name]["data_offsets"]
    except (ValueError, KeyError, TypeError, IndexError, struct.error):
        return "numbers unchanged"
    pattern = rng.choice(NUMBERS)
    if rng.random() < 0.3:
        begin = rng.randrange(begin, max(begin + 1, end - len(pattern)))
        end = begin + len(pattern)
    begin, end = 8 + size + begin, min(8 + size + end, len(data))
    count = max(0, end - begin)
    data[begin:end] = (pattern * (count // len(pattern) + 1))[:count]
    folder.write("model.safetensors", bytes(data))
    return f"numbers: {name} {pattern.hex()} {count} bytes"


def change_bytes(rng, folder):
    name = rng.choice(folder.files())
    data = bytearray(folder.read(name))
    kind = rng.choice(["flip", "cut", "append", "replace"])
    if not data:
        kind = "append"
    if kind == "flip":
        for _ in range(rng.choice([1, 10, 1000])):
            data[rng.randrange(min(len(data), rng.choice([200, 100000, len(data)])))] = rng.randrange(256)
    elif kind == "cut":
        del data[rng.randrange(len(data)):]
    elif kind == "append":
        data += rng.choice([b"\0", b"x", b" {}", b"\0" * 1000, rng.randbytes(100)])
    else:
        data = bytearray(rng.choice([b"", b"{}", b"[]", b"null", b"[" * 100000, b'{"a":' * 50000, rng.randbytes(2000)]))
    folder.write(name, bytes(data))
    return f"{name}: {kind}"


def add_index(rng, folder):
    shard = rng.choice(["model.safetensors", "no.safetensors", "../x", "/etc/passwd", "", "a\nb\x1b[31m", "x" * 5000, "."])
    name = rng.choice(["embed.weight", "norm.weight", "\x1b[2J", "n" * 3000])
    value = rng.choice([{"weight_map": {name: shard}}, {"weight_map": {}}, {}, {"weight_map": [name]}, {"weight_map": {name: 5}}])
    folder.write("model.safetensors.index.json", json.dumps(value).encode())
    return "index"


CHANGES = [change_json_file] * 5 + [change_header] * 3 + [change_numbers] * 2 + [change_bytes] * 2 + [add_index]


def commands(rng, folder, out):
    model = str(folder)
    yield ["inspect", model]
    yield ["run", model, "-n", "2", "-p", "Long ago, in a village aaaaaaaaaaaaaaaa", "--temp", "0", "--quiet"]
    yield rng.choice([["plan", model], ["quantize", model, "--experts", "k2", "-o", str(out)],
                      ["eval", "ppl", model, "--ids", "1,2,3,4,5,6,7,8"], ["inspect", model, "--verify", "--json"],
                      ["tokenize", model, "-p", "Long ago, in a village"], ["eval", "logits", model, "--ids", "1,2", "-o",
                                                                           str(out) + ".safetensors"]])


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def classify(binary, arguments):
    """'ok', 'error', or a finding."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run([binary, *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT,
                              preexec_fn=limit, env=environment)
    except subprocess.TimeoutExpired:
        return "hang", ""
    errors = done.stderr.decode("utf-8", "replace")
    if done.returncode < 0:
        return f"signal {signal.Signals(-done.returncode).name}", errors
    shown = done.stdout + done.stderr if arguments[0] != "run" else done.stderr
    if any((byte < 0x20 and byte not in b"\n\t") or byte == 0x7f for byte in shown):
        return "control character", errors
    if done.returncode == 0:
        return "ok", errors
    if errors.count("\n") != 1 or not errors.startswith("dsv4: "):
        return "not one line", errors
    if len(errors) > LONGEST_LINE:
        return "long line", errors
    if any(text in errors for text in INTERNAL):
        return "internal text", errors
    return "error", errors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/cpu/bin/dsv4"))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--keep", help="folder for those that gave a finding")
    options = parser.parse_args()
    begin = time.monotonic()
    counts, findings, folders = collections.Counter(), 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        base = scratch / "k3"
        subprocess.run([options.binary, "quantize", str(ROOT / "models/demo"), "-o", str(base), "--experts", "k3"], check=True,
                       capture_output=True)
        sources = [ROOT / "models/demo", ROOT / "models/demo", base]
        for number in range(options.first, options.first + options.count):
            if options.seconds and time.monotonic() - begin > options.seconds:
                break
            rng = random.Random(f"{options.seed} {number}")
            folder = Folder(rng.choice(sources), scratch / "model")
            changes = [rng.choice(CHANGES)(rng, folder) for _ in range(rng.choice([1, 1, 2, 3]))]
            folders += 1
            out = scratch / "out"
            for arguments in commands(rng, folder.path, out):
                kind, errors = classify(options.binary, arguments)
                counts[kind] += 1
                for left in scratch.glob("out*"):
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
                if kind in ("ok", "error"):
                    continue
                findings += 1
                print(f"{number}: {kind}: {arguments[0]} after {'; '.join(changes)}: {errors[:300]!r}", flush=True)
                if options.keep:
                    shutil.copytree(folder.path, Path(options.keep) / str(number), symlinks=True, dirs_exist_ok=True)
    print(f"{folders} folders, {sum(counts.values())} runs in {time.monotonic() - begin:.0f} s: "
          + ", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    sys.exit(1 if findings or folders == 0 else 0)


if __name__ == "__main__":
    main()
