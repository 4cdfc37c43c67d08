#!/usr/bin/env python3
"""The cache of `dsv4 pull` and that of huggingface_hub (PyPI) are one: each reads what the other has fetched, and both
may fetch at once. Usage: huggingface_test.py BINARY, in an environment that has the package."""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from local_hub import COMMIT, LocalHub, sha256

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(sys.argv.pop(1)).resolve()
MIB = 1 << 20
WEIGHTS = "model.safetensors"

DOWNLOAD = "from huggingface_hub import snapshot_download; print(snapshot_download('some/Model', local_files_only={}))"
SCAN = """
from huggingface_hub import scan_cache_dir
info = scan_cache_dir()
assert not info.warnings, info.warnings
(repo,) = info.repos
(revision,) = repo.revisions
print(revision.commit_hash, sorted(revision.refs), len(revision.files), revision.size_on_disk)
"""


class HuggingFaceTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="dsv4-hub-")
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name)
        self.repo = self.home / "hub/models--some--Model"
        self.snapshot = self.repo / "snapshots" / COMMIT
        demo = ROOT / "models/demo"
        self.files = {path.name: path.read_bytes() for path in demo.iterdir() if path.is_file()}
        self.files |= {"sub/folder/notes.txt": b"notes", "empty.txt": b"",
                       "other.safetensors": random.randbytes(9 * MIB)}
        self.hub = LocalHub(self.files)
        self.addCleanup(self.hub.__exit__, None, None, None)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        self.environment = kept | {"HF_HOME": str(self.home), "HF_ENDPOINT": self.hub.endpoint,
                                   "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1"}

    def run_ok(self, *command):
        result = subprocess.run([str(word) for word in command], env=self.environment, capture_output=True,
                                text=True, timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def download(self, offline=False):
        return self.run_ok(sys.executable, "-c", DOWNLOAD.format(offline)).stdout

    def expect_complete(self):
        for path, data in self.files.items():
            self.assertTrue((self.snapshot / path).read_bytes() == data, path)
        size = sum(map(len, self.files.values()))
        self.assertEqual(self.run_ok(sys.executable, "-c", SCAN).stdout,
                         f"{COMMIT} ['main'] {len(self.files)} {size}\n")
        links = [path for path in self.snapshot.rglob("*") if path.is_symlink()]
        self.assertEqual({path.resolve() for path in links}, set((self.repo / "blobs").iterdir()), "no other blob")

    def downloads(self):
        return [each for each in self.hub.requests
                if each.method == "GET" and ("/resolve/" in each.path or "/storage/" in each.path)]

    def test_huggingface_hub_reads_what_we_fetched(self):
        self.assertEqual(self.run_ok(BINARY, "pull", "some/Model").stdout, f"{self.snapshot}\n")
        self.hub.requests.clear()
        self.assertEqual(self.download(offline=True), f"{self.snapshot}\n")
        self.assertEqual(self.hub.requests, [])
        self.assertEqual(self.download(), f"{self.snapshot}\n")
        self.assertEqual(self.downloads(), [])
        self.expect_complete()

    def test_we_read_what_huggingface_hub_fetched(self):
        self.assertEqual(self.download(), f"{self.snapshot}\n")
        self.hub.requests.clear()
        self.assertEqual(self.run_ok(BINARY, "pull", "some/Model", "--offline").stdout, f"{self.snapshot}\n")
        run = self.run_ok(BINARY, "run", "some/Model", "-p", "Hello", "-n", "4")
        self.assertIn("some/Model is in the cache of Hugging Face", run.stderr)
        self.assertEqual(self.hub.requests, [])
        pull = self.run_ok(BINARY, "pull", "some/Model")
        self.assertIn(", 0 B to fetch", pull.stderr)
        self.assertEqual(self.downloads(), [])
        self.expect_complete()

    def test_we_complete_what_huggingface_hub_began(self):
        one = "from huggingface_hub import hf_hub_download; print(hf_hub_download('some/Model', 'config.json'))"
        self.run_ok(sys.executable, "-c", one)
        failed = subprocess.run([BINARY, "run", "some/Model", "-p", "a"], env=self.environment, capture_output=True,
                                text=True)
        self.assertEqual(failed.returncode, 1)
        self.assertIn("is not complete", failed.stderr)
        self.run_ok(BINARY, "pull", "some/Model")
        self.expect_complete()

    def test_huggingface_hub_completes_what_we_began(self):
        self.hub.delay = 0.005
        running = subprocess.Popen([BINARY, "pull", "some/Model"], env=self.environment, stderr=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL)
        part = self.repo / "blobs" / (sha256(self.files[WEIGHTS]) + ".dsv4-part")
        deadline = time.monotonic() + 30
        while not part.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)
        running.send_signal(signal.SIGKILL)
        running.wait()
        self.assertTrue(part.exists())
        self.hub.delay = 0
        self.assertEqual(self.download(), f"{self.snapshot}\n")
        self.run_ok(BINARY, "pull", "some/Model")  # which removes the parts
        self.expect_complete()

    def test_both_at_once(self):
        for _ in range(3):
            self.hub.delay = 0.002
            running = subprocess.Popen([BINARY, "pull", "some/Model"], env=self.environment, stderr=subprocess.PIPE,
                                       stdout=subprocess.DEVNULL, text=True)
            self.download()
            self.assertEqual(running.wait(60), 0, running.stderr.read())
            running.stderr.close()
            self.hub.delay = 0
            self.run_ok(BINARY, "pull", "some/Model")
            self.expect_complete()
            shutil.rmtree(self.repo)


if __name__ == "__main__":
    unittest.main()
