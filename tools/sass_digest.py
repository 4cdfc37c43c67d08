#!/usr/bin/env python3
"""Digests of the machine code of every kernel in a CUDA build, to prove on a machine without a GPU that a change moved
code and did not alter it.

usage: sass_digest.py list FROM [-o FILE]      digest, architecture, bytes and name of each kernel
       sass_digest.py compare FROM FROM        exit 1, with the kernels that are in one only, unless both are equal

FROM is a build folder (all objects below it), an object, or a file that `list -o` wrote.

An object of nvcc holds a cubin per architecture, an ELF file with a section .text.KERNEL for each kernel. The digest is
the SHA-256 of this section, the encoded instructions. Two builds are equal when they have the same multiset of digests
per architecture: names of kernels, which change with namespaces and files, do not count, and line numbers are in other
sections. Registers and shared memory are encoded elsewhere: check_ptxas.py lists them.
"""

import argparse
import collections
import hashlib
import pathlib
import struct
import subprocess
import sys

FATBIN, KIND_ELF = 0xBA55ED50, 2
Kernel = collections.namedtuple("Kernel", "digest arch bytes name")


def sections(elf):
    """(name, bytes) of each section of a 64-bit ELF file."""
    (offset,), (count, names) = struct.unpack_from("<Q", elf, 40), struct.unpack_from("<HH", elf, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, offset + 64 * i) for i in range(count)]
    for header in headers:
        start = headers[names][4] + header[0]
        kind, at, size = header[1], header[4], header[5]
        yield elf[start:elf.index(b"\0", start)].decode(), b"" if kind == 8 else elf[at:at + size]  # 8: no bits


def cubins(fatbin):
    """(architecture, ELF bytes) of each cubin: a container has a header and entries, PTX or ELF, each with its own."""
    at = 0
    while at + 16 <= len(fatbin):
        magic, _, header, size = struct.unpack_from("<IHHQ", fatbin, at)
        if magic != FATBIN:
            at += 8  # padding between containers
            continue
        entry, at = at + header, at + header + size
        while entry < at:
            kind, _, entry_header, payload = struct.unpack_from("<HHIQ", fatbin, entry)
            arch, = struct.unpack_from("<I", fatbin, entry + 28)
            elf = fatbin[entry + entry_header:entry + entry_header + payload]
            if kind == KIND_ELF:
                if elf[:4] != b"\x7fELF":
                    sys.exit("sass_digest: compressed cubins: build without --compress-mode")
                yield f"sm_{arch}", elf
            entry += entry_header + payload


def kernels_of(obj):
    data = obj.read_bytes()
    if data[:4] != b"\x7fELF":
        return
    for section, fatbin in sections(data):
        if section != ".nv_fatbin":
            continue
        for arch, elf in cubins(fatbin):
            for name, text in sections(elf):
                if name.startswith(".text.") and text:
                    yield Kernel(hashlib.sha256(text).hexdigest()[:24], arch, len(text), name[len(".text."):])


def read(source):
    if source.is_dir():
        kernels = [k for obj in sorted(source.rglob("*.o")) for k in kernels_of(obj)]
    elif source.read_bytes()[:4] == b"\x7fELF":
        kernels = list(kernels_of(source))
    else:
        lines = (line.split(maxsplit=3) for line in source.read_text().splitlines())
        kernels = [Kernel(digest, arch, int(size), name) for digest, arch, size, name in lines]
    if not kernels:
        sys.exit(f"sass_digest: no kernel in {source}: want a folder with objects of the cuda preset")
    return kernels


def only_in(some, others):
    """The kernels of `some` whose code `others` lacks; equal kernels count as often as they occur."""
    left = collections.Counter((k.arch, k.digest) for k in others)
    extra = []
    for kernel in some:
        if left[kernel.arch, kernel.digest] > 0:
            left[kernel.arch, kernel.digest] -= 1
        else:
            extra.append(kernel)
    return extra


def text(kernel):
    plain = subprocess.run(["c++filt", kernel.name], capture_output=True, text=True, check=True).stdout.strip()
    return f"{kernel.arch} {kernel.bytes:7} bytes  {plain}"


def compare(before, after):
    gone, new = only_in(before, after), only_in(after, before)
    for mark, kernels in (("-", gone), ("+", new)):
        for kernel in sorted(kernels, key=lambda k: (k.arch, k.name)):
            print(mark, text(kernel))
    print(f"sass_digest: {len(before)} kernels before, {len(after)} after, {len(before) - len(gone)} with the same code")
    return 1 if gone or new else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list")
    listing.add_argument("source", type=pathlib.Path)
    listing.add_argument("-o", "--out", type=pathlib.Path)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=pathlib.Path)
    comparing.add_argument("after", type=pathlib.Path)
    options = parser.parse_args()
    if options.command == "compare":
        sys.exit(compare(read(options.before), read(options.after)))
    lines = "".join(f"{k.digest} {k.arch} {k.bytes} {k.name}\n" for k in sorted(read(options.source)))
    if options.out:
        options.out.write_text(lines)
    else:
        print(lines, end="")


if __name__ == "__main__":
    main()
