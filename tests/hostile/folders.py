"""Damaged model folders: a copy of a model with one to three random changes.

A value of config.json, tokenizer.json, generation_config.json, the ledger or the safetensors header is replaced, removed
or doubled; bytes of a file are flipped, cut or appended; numbers of a tensor are overwritten; an index appears; a file
becomes a folder, a loop, a pipe or a device, or is split in two. What `run` refuses, `inspect` and `quantize` refuse too.
"""

import json
import os
import random
import shutil
import struct

from outcome import Run

DEEP = "nested 100,000 times"  # stands for such a list until the text is written: json would not write it
STRANGE = [DEEP, DEEP, None, True, False, -1, 0, 1, 2, 7, 2**31, 2**53, 2**63, 2**64, -2**63, 1.5, -0.0, 1e308, 1e-320, "", "x",
           "\x1b[2J\x1b]0;t\x07", "a\nb", "\x00", "\u202e\u0085", "x" * 5000, [], {}, [[]], {"a": {"b": []}}, [0] * 3000,
           "../../etc/passwd", "(a+)+$", "[", "F32", "BF16", "I64", "F8_E8M0", [0], [0, 0], [-1, 4], [2**40, 2**40]]
NUMBERS = [struct.pack("<f", float("nan")), struct.pack("<f", float("inf")), b"\xc0\x7f", b"\x7f", b"\xff", b"\x00",
           struct.pack("<q", 2**40), struct.pack("<f", 3e38)]
# What reading or changing a file raises that an earlier change has damaged; RecursionError: nested too deeply.
DAMAGED = (ValueError, IndexError, KeyError, TypeError, AttributeError, struct.error, MemoryError, RecursionError)


def places(value, path=()):
    """Every path of a JSON value, containers included; long lists and objects by a sample."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    items = list(items)
    for key, below in items if len(items) <= 60 else items[:30] + items[-30:]:
        yield from places(below, path + (key,))


def change_json(rng, value, strange=STRANGE):
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
        parent[key] = rng.choice(strange)
    return f"{'.'.join(map(str, path))[:60]} kind {kind}"


def json_text(value, **how):
    nest = "[" * 100_000 + "]" * 100_000
    return json.dumps(value, **how).replace(json.dumps(DEEP), nest).encode("utf-8", "surrogatepass")


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
        folder.write(name, json_text(value, ensure_ascii=rng.random() < 0.5))
    except DAMAGED:
        return f"{name} unchanged"
    return f"{name}: {done}"


def change_header(rng, folder):
    data = folder.read("model.safetensors")
    try:
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + size])
        done = change_json(rng, header)
    except DAMAGED:
        return "header unchanged"
    text = json_text(header)
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
    except DAMAGED:
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


def change_file_kind(rng, folder):
    """In place of a file: what open() and stat() see differently."""
    name = rng.choice(folder.files() + ["quantization_ledger.json", "model.safetensors.index.json"])
    path, kind = folder.path / name, rng.choice(["gone", "folder", "loop", "dangling", "pipe", "zeros", "memory", "sparse"])
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(name)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 1 << 40)
    elif kind != "gone":
        path.symlink_to({"dangling": "/nowhere/at/all", "zeros": "/dev/zero", "memory": "/proc/self/mem"}[kind])
    return f"{name}: {kind}"


def split_in_shards(rng, folder):
    """Two shards and an index; sometimes one of them is missing, doubled or swapped."""
    data = folder.read("model.safetensors")
    try:
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + size])
        names = [name for name in header if name != "__metadata__"]
        index, half = {}, len(names) // 2
        for number, part in enumerate((names[:half], names[half:])):
            begin, own, bytes_of = 0, {}, []
            for name in part:
                low, high = header[name]["data_offsets"]
                own[name] = header[name] | {"data_offsets": [begin, begin + high - low]}
                bytes_of.append(data[8 + size + low:8 + size + high])
                begin += high - low
                index[name] = f"s{number}.safetensors"
            text = json.dumps(own).encode()
            folder.write(f"s{number}.safetensors", struct.pack("<Q", len(text)) + text + b"".join(bytes_of))
    except DAMAGED:
        return "shards unchanged"
    (folder.path / "model.safetensors").unlink()
    folder.write("model.safetensors.index.json", json.dumps({"weight_map": index}).encode())
    kind = rng.choice(["good", "missing", "same", "swapped", "no index"])
    first, second = folder.path / "s0.safetensors", folder.path / "s1.safetensors"
    if kind == "missing":
        second.unlink()
    elif kind == "same":
        shutil.copy(first, second)
    elif kind == "swapped":
        first.rename(folder.path / "s2"), second.rename(first), (folder.path / "s2").rename(second)
    elif kind == "no index":
        (folder.path / "model.safetensors.index.json").unlink()
    return f"shards: {kind}"


CHANGES = ([change_json_file] * 5 + [change_header] * 3 + [change_numbers] * 2 + [change_bytes] * 2 + [add_index] +
           [change_file_kind, split_in_shards])


def case(rng, place):
    folder = Folder(rng.choice([place.demo, place.demo, place.k3]), place.folder / "model")
    changes = []
    for change in rng.choices(CHANGES, k=rng.choice([1, 1, 2, 3])):
        changes.append(change(rng, folder))
        if change in (change_file_kind, split_in_shards):  # the others want plain files
            break
    return "; ".join(changes), runs(rng, str(folder.path), str(place.folder / "out"))


def runs(rng, model, out):
    refused = []

    def note(done):
        # Finite weights of any size load: only a step shows that they give no numbers. And a folder
        # without tokenizer.json is a model without text.
        excused = (b"dsv4 inspect --verify looks", b"tokenizer.json is missing")
        refused.append(done.code != 0 and not any(words in done.err for words in excused))
        return ""

    def also_refused(done):
        return "accepts what run refuses" if done.code == 0 and refused[0] else ""
    yield Run(["run", model, "-n", "2", "-p", "Long ago, in a village aaaaaaaaaaaaaaaa", "--temp", "0", "--quiet"],
              judge=note, shows_model_text=True)
    yield Run(["inspect", model], judge=also_refused)
    yield rng.choice([Run(["plan", model]), Run(["quantize", model, "--experts", "k2", "-o", out], judge=also_refused),
                      Run(["quantize", model, "--experts", "k2", "-o", out], judge=also_refused),
                      Run(["eval", "ppl", model, "--ids", "1,2,3,4,5,6,7,8"]),
                      Run(["inspect", model, "--verify", "--json"], judge=also_refused),
                      Run(["bench", "decode", model, "--steps", "2", "--context", "64", "--json"]),
                      Run(["tokenize", model, "-p", "Long ago, in a village", "--json"]),
                      Run(["eval", "logits", model, "--ids", "1,2", "-o", out])])
