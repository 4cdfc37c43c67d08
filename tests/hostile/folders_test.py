#!/usr/bin/env python3
"""The changes of folders.py on files that earlier changes of the same case have damaged."""

import random
import struct
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import folders

TOO_DEEP = [b"[" * 100000, b'{"a":' * 50000, *(b"[" * depth + b"]" * depth for depth in range(900, 1000, 10))]


class Changes(unittest.TestCase):
    def test_accept_files_that_are_nested_too_deeply(self):
        with tempfile.TemporaryDirectory() as root:
            source = Path(root) / "source"
            source.mkdir()
            for text in TOO_DEEP:
                for change in folders.CHANGES:
                    (source / "config.json").write_bytes(text)
                    (source / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
                    folder = folders.Folder(source, Path(root) / "copy")
                    self.assertIsInstance(change(random.Random(1), folder), str)


if __name__ == "__main__":
    unittest.main()
