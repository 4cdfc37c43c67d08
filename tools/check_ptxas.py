#!/usr/bin/env python3
"""Fails when a kernel uses local memory that tools/ptxas_allowed.txt does not allow, or when ptxas serializes its wgmma.

usage: check_ptxas.py [BUILD] [--allowed FILE] [--list]

Reads the reports of `ptxas -v` that the cuda preset leaves beside its objects (BUILD, default
build/cuda, **/*.ptxas; written by cmake/ptxas_log.sh). A stack frame is memory that every thread
reads and writes through L1 and L2: spilled registers, or an array indexed at run time. Both are
usually an accident that costs more than the change that caused it gained. Serialized wgmma (C7510 to C7519: ptxas waits for
each product where it cannot keep several in flight) halved the speed of a kernel that had no spill. Kernels of
bench/micro, which measure what such things cost, are not checked.

The list has a line for each exception:

    REGULAR EXPRESSION | STACK BYTES | SPILL BYTES | REASON

The expression is searched for in "ARCH KERNEL", the name demangled. Bytes are what a thread may use
at most; spill bytes are those of stores and of loads, each. A line that no kernel of the build needs
any more is an error as well, unless the build has no kernel that it matches (a partial build).

--list prints every kernel: registers, stack, spill stores, spill loads.
"""

import argparse
import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
FUNCTION = re.compile(r"Function properties for (\S+)")
ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
SERIALIZED = re.compile(r"\((C751\d)\) .*serialized due to (.*) (?:for|in) the function '(\S+)'")
REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass
class Kernel:
    arch: str
    name: str
    stack: int
    spill_stores: int
    spill_loads: int
    registers: int = 0
    serialized: str = ""  # why its wgmma are

    def spill(self):
        return max(self.spill_stores, self.spill_loads)

    def text(self):
        return (f"{self.arch} {self.name}: {self.stack} bytes of stack, spills of {self.spill_stores} bytes "
                f"stored and {self.spill_loads} loaded")


@dataclass
class Allowance:
    line: int
    pattern: re.Pattern
    stack: int
    spill: int
    matched: int = 0  # kernels
    needed: int = 0


def read_report(text):
    """The kernels of one object, names as the compiler writes them."""
    kernels = []
    arch = name = "unknown"
    serialized = {}
    for line in text.splitlines():
        if found := SERIALIZED.search(line):
            serialized[found[3]] = f"{found[2]} ({found[1]})"
        elif found := ENTRY.search(line):
            arch = found[2]
        elif found := FUNCTION.search(line):
            name = found[1]
        elif found := FRAME.search(line):
            kernels.append(Kernel(arch, name, *map(int, found.groups())))
        elif (found := REGISTERS.search(line)) and kernels:
            kernels[-1].registers = int(found[1])
    for kernel in kernels:
        kernel.serialized = serialized.get(kernel.name, "")
    return kernels


def demangle(kernels):
    names = "\n".join(kernel.name for kernel in kernels)
    plain = subprocess.run(["c++filt"], input=names, capture_output=True, text=True, check=True).stdout
    for kernel, name in zip(kernels, plain.splitlines()):
        kernel.name = name.replace("(anonymous namespace)::", "")


def read_allowances(text):
    allowances = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split(" | ")]
        if len(fields) != 4 or not fields[3]:
            raise ValueError(f"line {number}: want 'EXPRESSION | STACK BYTES | SPILL BYTES | REASON', got '{line}'")
        allowances.append(Allowance(number, re.compile(fields[0]), int(fields[1]), int(fields[2])))
    return allowances


def complaints(kernels, allowances):
    """A line for every kernel beyond its allowance, and for every allowance that has become needless."""
    lines = set()
    for kernel in kernels:
        matching = [a for a in allowances if a.pattern.search(f"{kernel.arch} {kernel.name}")]
        stack, spill = (max((getattr(a, what) for a in matching), default=0) for what in ("stack", "spill"))
        for allowance in matching:
            allowance.matched += 1
            allowance.needed += kernel.stack > 0 or kernel.spill() > 0
        if "dsv4::micro::" in kernel.name:
            continue
        if kernel.serialized:
            lines.add(f"{kernel.arch} {kernel.name}: ptxas waits for each wgmma: {kernel.serialized}")
        if kernel.stack > stack or kernel.spill() > spill:
            lines.add(f"{kernel.text()}; allowed: {stack} of stack, {spill} of spills")
    for allowance in allowances:
        if allowance.matched > 0 and allowance.needed == 0:
            lines.add(f"line {allowance.line} of the list allows '{allowance.pattern.pattern}', which needs no stack any "
                      "more: remove the line")
    return sorted(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", type=pathlib.Path, default=ROOT / "build/cuda")
    parser.add_argument("--allowed", type=pathlib.Path, default=ROOT / "tools/ptxas_allowed.txt")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    reports = [path for path in sorted(options.build.rglob("*.ptxas")) if path.with_suffix("").exists()]
    kernels = [kernel for path in reports for kernel in read_report(path.read_text())]
    if not kernels:
        sys.exit(f"check_ptxas: no kernel in the reports below {options.build}: build the cuda preset first")
    demangle(kernels)
    if options.list:
        for kernel in sorted(kernels, key=lambda k: (k.arch, k.name)):
            print(f"{kernel.registers:4} registers, {kernel.text()}")
    lines = complaints(kernels, read_allowances(options.allowed.read_text()))
    for line in lines:
        print(line)
    print(f"check_ptxas: {len(kernels)} kernels of {len(reports)} objects, {len(lines)} complaints")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
