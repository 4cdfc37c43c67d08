#!/usr/bin/env python3
"""Checks every include of the project against layers.txt.

  dsv4/LAYER/..               may include dsv4/LAYER/ and the layers that its line of layers.txt names
  dsv4/ops/FLOOR/..           may include its floor, the floors that its line names, and what the line "ops" names
  dsv4/ops/FLOOR/OP/IMPL/..   only this op includes it: an implementation is not a library of other ops. The floor gemm
                              is one: its folders are open to the floors that name it
  apps/..                     may include apps/ and the layers of the line "apps"
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
# Includes of the weight products that are still to be taken apart, as "FILE TARGET" without dsv4/ops/; no new line.
PENDING = set("""
gemm/few_gemm/boundary.cuh model/hc_boundary/hc_boundary_impls.h
gemm/few_gemm/boundary.cuh model/hc_boundary/sm90_few/finish.cuh
gemm/few_gemm/launch.h model/hc_boundary/hc_boundary.h
gemm/few_gemm/quantize_x.cuh model/hc_boundary/sm90_few/input.cuh
gemm/few_gemm/sm90_launch.cu model/hc_boundary/hc_boundary_impls.h
gemm/few_gemm/sm90_launch.cu model/hc_boundary/sm90_few/launch.cuh
gemm/few_gemm/sm90_launch.cu parts/quant/quant.h
model/moe/sm90_few/kernels.cuh parts/experts/cuda/swiglu.cuh
model/moe/sm90_few/launch.cu model/hc_boundary/sm90_few/launch.cuh
model/moe/sm90_fused/activations.cuh parts/experts/sm90_few_e4m3/activations.cuh
model/moe/sm90_fused/call.cuh parts/experts/sm90_few_e4m3/reader.cuh
model/moe/sm90_fused/config.cuh parts/experts/sm90_few_e4m3/config.cuh
model/moe/sm90_fused/down.cuh parts/experts/sm90_few_e4m3/kernel.cuh
model/moe/sm90_fused/gate_up.cuh parts/experts/sm90_few_e4m3/kernel.cuh
model/moe/sm90_fused/shared_down.cuh parts/experts/sm90_few_e4m3/multiply.cuh
model/moe/sm90_fused/shared_down.cuh model/hc_boundary/sm90_few/input.cuh
""".splitlines())


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
    if is_check(path) or f"{path} {target}".replace("dsv4/ops/", "") in PENDING:
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


def check(root):
    layers = read_layers(root)
    problems = []
    folders = sorted(p for p in (root / "dsv4").iterdir() if p.is_dir())
    for folder in folders:
        if folder.name not in layers:
            problems.append(f"dsv4/{folder.name}: not in layers.txt")
    for top in ("dsv4", "apps"):
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in SUFFIXES:
                continue
            path = file.relative_to(root).as_posix()
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
