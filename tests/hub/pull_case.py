"""What the tests of `dsv4 pull` share. The program is the first argument of the test."""

import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

from local_hub import COMMIT, LocalHub, git_sha1, sha256

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(sys.argv.pop(1)).resolve()
MODEL, DEMO = ROOT / "tests/golden/hf/mixed", ROOT / "models/demo"
MIB = 1 << 20
WEIGHTS = "model.safetensors"
HF_VARIABLES = ("HF_", "HUGGING", "XDG_CACHE", "SSL_CERT", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
                "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


def model_files(folder=MODEL):
    return {path.name: path.read_bytes() for path in folder.iterdir()
            if path.is_file() and path.name not in ("ids.txt", "logits.safetensors")}


class PullTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="dsv4-pull-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.cache = self.folder / "home/.cache/huggingface/hub"
        self.repo = self.cache / "models--some--Model"
        self.snapshot = self.repo / "snapshots" / COMMIT

    def hub(self, files, **options):
        hub = LocalHub(files, **options)
        self.addCleanup(hub.__exit__, None, None, None)
        return hub

    def environment(self, hub=None, **variables):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(HF_VARIABLES)}
        kept |= {"HOME": str(self.folder / "home"), "DSV4_PROGRESS_S": "1000"}
        if hub is not None:
            kept["HF_ENDPOINT"] = hub.endpoint
        return kept | variables

    def run_dsv4(self, *arguments, hub=None, **variables):
        return subprocess.run([BINARY, *map(str, arguments)], env=self.environment(hub, **variables), cwd=self.folder,
                              capture_output=True, text=True, timeout=120)

    def pull(self, hub, *options, model="some/Model", **variables):
        return self.run_dsv4("pull", model, *options, hub=hub, **variables)

    def expect_pulled(self, hub, *options, model="some/Model", **variables):
        result = self.pull(hub, *options, model=model, **variables)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, f"{self.snapshot}\n")
        self.expect_complete(hub)
        return result

    def expect_complete(self, hub, left_out=()):
        for path, data in hub.files.items():
            if path in left_out:
                continue
            link = self.snapshot / path
            self.assertTrue(link.is_symlink(), path)
            oid = sha256(data) if path in hub.large else git_sha1(data)
            self.assertEqual(os.readlink(link), "../" * (2 + path.count("/")) + "blobs/" + oid)
            self.assertTrue(link.read_bytes() == data, path)
        self.assertEqual([path.name for path in (self.repo / "blobs").iterdir() if "." in path.name], [])

    def expect_error(self, result, *parts):
        """Exit code 1, nothing on stdout, and one line that is not a notice: the last."""
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stdout, "")
        lines = result.stderr.splitlines()
        for line in lines[:-1]:
            self.assertRegex(line, r"^dsv4: (note: |some/Model.* is commit |.*; try \d+ of \d+ in \d+ s$)")
        for part in parts:
            self.assertIn(part, lines[-1])

    def expect_nothing_in_place(self, *paths):
        """No snapshot and no ref; of the files in `paths` no blob."""
        self.assertFalse(self.snapshot.exists())
        self.assertFalse((self.repo / "refs").exists())
        blobs = self.repo / "blobs"
        left = {path.name for path in blobs.iterdir()} if blobs.exists() else set()
        for oid in paths:
            self.assertNotIn(oid, left)

    def expect_nothing_outside(self):
        self.assertEqual({path.name for path in self.folder.iterdir()} - {"home"}, set())
        self.assertEqual({path.name for path in self.cache.iterdir()} - {"models--some--Model", ".locks"}, set())


def large_files(size=20 * MIB + 12345):
    return {"config.json": b"{}", "empty": b"", "folder/sub/notes.txt": b"text", WEIGHTS: random.randbytes(size),
            "odd name #1 %41?.safetensors": random.randbytes(1000)}
