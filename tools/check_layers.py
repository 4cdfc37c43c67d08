#!/usr/bin/env python3
"""Checks every include of the project against layers.txt.

  dsv4/LAYER/..               may include dsv4/LAYER/ and the layers that its line of layers.txt names
  dsv4/ops/FLOOR/..           may include its floor, the floors that its line names, and what the line "ops" names
  dsv4/ops/FLOOR/OP/IMPL/..   only this op includes it: an implementation is not a library of other ops. The floor gemm
                              is one: its folders are open to the floors that name it
  apps/..                     may include apps/ and the layers of the line "apps"
  a .cu file                  reaches at most 60 files of the project, at an include depth of at most 11 (itself is 1)
  X_case.h, X_oracle.h, ops/oracle.h    only oracles, tests and benchmarks may include them
  tests/ bench/ fuzz/, X_test.cc, X_bench.cc    may include anything; nothing else may include them

Usage: check_layers.py [ROOT]. Prints "file:line: message" per violation and exits 1 if there are any.
"""

import pathlib
import re
import sys

SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]((?:dsv4|apps|tests|bench|fuzz)/[^">]+)[">]')
HELPERS = ("tests/", "bench/", "fuzz/")
MOST_FILES, MOST_DEPTH = 60, 11
# .cu files that may reach more, as {file: (files, depth)}: what they have now, never to be raised.
LARGE = {
    # A kernel that is the products of two formats, the boundary before a block and what the block adds.
    "dsv4/ops/model/moe/sm90_few/launch.cu": (77, MOST_DEPTH),
    "dsv4/ops/model/moe/sm90_fused/instance.cu": (76, MOST_DEPTH),
    "dsv4/ops/model/hc_boundary/sm90_few/block_input.cu": (69, MOST_DEPTH),
    # Products, rotation, caches and compressors in one launch; attention_in.h names four of their headers.
    "dsv4/ops/model/attention_in/sm90_few/query.cu": (77, 12),
    "dsv4/plan/synthetic_cuda.cu": (61, 12),
}


def read_layers(root):
    """{layer: layers it may include}; a line may only name layers above it."""
    layers = {}
    for number, line in enumerate((root / "layers.txt").read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        layer, _, below = line.partition(":")
        for name in below.split():
            if name not in layers:
                sys.exit(f"layers.txt:{number}: {layer} names {name}, which is not above it")
        layers[layer.strip()] = set(below.split())
    return layers


def layer_of(layers, path):
    parts = path.split("/")
    if parts[0] != "dsv4":
        return parts[0]
    floor = "/".join(parts[1:3])
    return floor if floor in layers else parts[1]


def allowed(layers, layer):
    """The layers that `layer` may include: "ops" stands for all its floors, except on a floor, which has arrows of its own."""
    below = set(layers.get(layer, ()))
    if layer.startswith("ops/"):
        return below | layers["ops"]
    return below | {floor for floor in layers if floor.startswith("ops/") and "ops" in below}


def implementation_of(path):
    """dsv4/ops/FLOOR/OP of a file in an implementation folder of this op, or None."""
    parts = path.split("/")
    return "/".join(parts[:4]) if parts[:2] == ["dsv4", "ops"] and len(parts) > 5 and parts[2] != "gemm" else None


def is_oracle(path):
    return re.search(r"(^|/|_)oracle\.(h|cc)$", path) is not None


def is_check(path):
    """Tests and benchmarks: no library links them, so they may include anything."""
    return path.startswith(HELPERS) or re.search(r"_(test|bench)\.(cc|cu|h)$|_case\.h$", path) is not None


def violation(layers, path, target):
    """Why `path` must not include `target`, or None."""
    if is_check(path):
        return None
    if target.endswith("_case.h") and not is_oracle(path):
        return f"{target}: only oracles, tests and benchmarks include it"
    if is_oracle(target) and not is_oracle(path):
        return f"{target} is an oracle: only oracles, tests and benchmarks include it"
    if target.startswith(HELPERS):
        return f"{target}: only tests and benchmarks include it"
    layer, below = layer_of(layers, path), layer_of(layers, target)
    if below != layer and below not in allowed(layers, layer):
        return f"{layer} may not include {below} ({target})"
    op = implementation_of(target)
    if op is not None and not path.startswith(op + "/"):
        return f"{target} is an implementation of {op[len('dsv4/ops/'):]}: no other op includes it"
    return None


class Includes:
    """What the files of a project reach, by their includes of each other."""

    def __init__(self, root):
        self.root, self.known = root, {}

    def reached(self, path):
        """(files that `path` reaches, include depth), with itself."""
        if path not in self.known:
            self.known[path] = ({path}, 1)
            files, depth = {path}, 0
            for match in map(INCLUDE.match, (self.root / path).read_text().splitlines()):
                if match and (self.root / match.group(1)).is_file():
                    below, its_depth = self.reached(match.group(1))
                    files, depth = files | below, max(depth, its_depth)
            self.known[path] = files, depth + 1
        return self.known[path]

    def problem(self, path):
        """Why `path` reaches too much, or None."""
        files, depth = self.reached(path)
        most_files, most_depth = LARGE.get(path, (MOST_FILES, MOST_DEPTH))
        if len(files) > most_files:
            return f"reaches {len(files)} files of the project, more than {most_files}"
        if depth > most_depth:
            return f"has includes {depth} deep, more than {most_depth}"
        return None


def check(root):
    layers = read_layers(root)
    problems = []
    includes = Includes(root)
    folders = sorted(p for p in (root / "dsv4").iterdir() if p.is_dir())
    for folder in folders:
        if folder.name not in layers:
            problems.append(f"dsv4/{folder.name}: not in layers.txt")
    for top in ("dsv4", "apps"):
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in SUFFIXES:
                continue
            path = file.relative_to(root).as_posix()
            if file.suffix == ".cu" and not is_check(path) and (too_much := includes.problem(path)):
                problems.append(f"{path}:1: {too_much}")
            for number, line in enumerate(file.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                problem = match and violation(layers, path, match.group(1))
                if problem:
                    problems.append(f"{path}:{number}: {problem}")
    return problems


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    problems = check(root)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
