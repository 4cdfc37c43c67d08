"""Checks sass_digest.py on objects made here: containers, two architectures, renamed and changed kernels. Run: python3 FILE."""

import pathlib
import struct
import tempfile
import unittest

import sass_digest


def elf(sections):
    """A 64-bit ELF file with these {name: bytes}."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in [*sections, ".shstrtab"])
    body, headers, name_at = b"", b"\0" * 64, 1
    for name, data in [*sections.items(), (".shstrtab", names)]:
        headers += struct.pack("<IIQQQQIIQQ", name_at, 1, 0, 0, 64 + len(body), len(data), 0, 0, 1, 0)
        body, name_at = body + data, name_at + len(name) + 1
    head = b"\x7fELF" + b"\0" * 36 + struct.pack("<Q", 64 + len(body)) + b"\0" * 12
    return head + struct.pack("<HH", len(sections) + 2, len(sections) + 1) + body + headers


def entry(kind, arch, payload):
    return struct.pack("<HHIQIIII", kind, 0x101, 32, len(payload), 0, 0, 0, arch) + payload


def container(*entries):
    payload = b"".join(entries)
    return struct.pack("<IHHQ", sass_digest.FATBIN, 1, 16, len(payload)) + payload


def cubin(arch, **kernels):
    return entry(sass_digest.KIND_ELF, arch, elf({f".text.{name}": code for name, code in kernels.items()}))


class SassDigestTest(unittest.TestCase):
    def read(self, *containers):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "a.o")
            path.write_bytes(elf({".nv_fatbin": b"\0\0\0\0\0\0\0\0".join(containers), ".data": b"1"}))
            return sass_digest.read(path.parent)

    def test_lists_every_kernel(self):
        kernels = self.read(container(entry(1, 80, b"ptx"), cubin(80, f=b"a" * 16, g=b"b" * 32)),
                            container(cubin(90, f=b"a" * 16)))
        self.assertEqual([(k.arch, k.bytes, k.name) for k in kernels],
                         [("sm_80", 16, "f"), ("sm_80", 32, "g"), ("sm_90", 16, "f")])

    def test_names_do_not_count_and_code_does(self):
        before = self.read(container(cubin(90, f=b"a" * 16, g=b"b" * 16)))
        renamed = self.read(container(cubin(90, y=b"b" * 16, x=b"a" * 16)))
        changed = self.read(container(cubin(90, f=b"a" * 16, g=b"c" * 16)))
        self.assertEqual(sass_digest.only_in(before, renamed), [])
        self.assertEqual([k.name for k in sass_digest.only_in(before, changed)], ["g"])

    def test_equal_kernels_count_as_often_as_they_occur(self):
        once, twice = (self.read(container(*[cubin(90, f=b"a" * 16)] * n)) for n in (1, 2))
        self.assertEqual(sass_digest.only_in(once, twice), [])
        self.assertEqual(len(sass_digest.only_in(twice, once)), 1)

    def test_architectures_are_apart(self):
        some, other = (self.read(container(cubin(arch, f=b"a" * 16))) for arch in (80, 90))
        self.assertEqual(len(sass_digest.only_in(some, other)), 1)


if __name__ == "__main__":
    unittest.main()
