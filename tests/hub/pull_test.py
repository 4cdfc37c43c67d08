#!/usr/bin/env python3
"""`dsv4 pull` against a local server that plays the hub: what it fetches, and what goes wrong on the way. Every case
ends with the right bytes, or with one line and exit code 1; what is not complete is never in place.

Usage: pull_test.py BINARY [TEST ...]"""

import email.utils
import fcntl
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from local_hub import (COMMIT, cut, drip, git_sha1, no_fault, other_range, other_size, sha256, status, whole_file,
                       wrong_bytes)
from pull_case import BINARY, MIB, MODEL, WEIGHTS, PullTest, large_files


class Fetching(PullTest):
    def test_layout_and_bytes(self):
        hub = self.hub(large_files())
        result = self.expect_pulled(hub)
        self.assertIn(f"some/Model is commit {COMMIT[:10]}: 5 files, 20.0 MiB, 20.0 MiB to fetch", result.stderr)
        self.assertEqual((self.repo / "refs/main").read_text(), COMMIT)
        ranges = hub.downloads(WEIGHTS)
        self.assertEqual(len(ranges), 6, "five pieces of 4 MiB and the rest")
        # What is there is not fetched again: the list of files is all that is read.
        hub.requests.clear()
        again = self.expect_pulled(hub)
        self.assertIn(" 0 B to fetch", again.stderr)
        self.assertEqual([each.path.split("/")[1] for each in hub.requests], ["api", "api"])

    def test_many_small_files(self):
        hub = self.hub({f"folder{i % 7}/file{i}": b"%d" % i for i in range(90)} | {f"same{i}": b"x" for i in range(9)})
        for connections in (1, 16):
            self.expect_pulled(hub, "--connections", connections)
            shutil.rmtree(self.repo)

    def test_redirects_are_remembered(self):
        hub = self.hub({WEIGHTS: random.randbytes(20 * MIB)})
        self.expect_pulled(hub, "--connections", 2)
        resolved = [each for each in hub.requests if "/resolve/" in each.path]
        self.assertLessEqual(len(resolved), 2)
        self.assertEqual(len(hub.downloads(WEIGHTS)), 5)

    def test_an_expired_address_is_renewed(self):
        hub = self.hub({WEIGHTS: random.randbytes(20 * MIB)})

        def expire(handler, data, begin, end):
            hub.signature = "new"
            handler.answer(403, b"expired", {})
        fault = status(0)
        fault.act = expire
        hub.faults[WEIGHTS] = [no_fault(), fault]
        self.expect_pulled(hub, "--connections", 1)

    def test_revisions(self):
        for revision in ("v1", "refs/pr/1"):
            hub = self.hub({"config.json": b"{}"})
            self.expect_pulled(hub, model=f"some/Model@{revision}")
            self.assertEqual((self.repo / "refs" / revision).read_text(), COMMIT)
        self.expect_pulled(hub, model=f"some/Model@{COMMIT}")
        self.assertFalse((self.repo / "refs" / COMMIT).exists())
        self.assertFalse((self.repo / "refs/main").exists())
        self.expect_error(self.pull(hub, model="some/Model@gone"), "some/Model@gone", "404", "Invalid rev id: gone")

    def test_a_list_of_several_pages(self):
        hub = self.hub({f"file{i}": b"%d" % i for i in range(7)})
        hub.page = 2
        self.expect_pulled(hub)

    def test_other_formats_are_left_out(self):
        hub = self.hub({WEIGHTS: b"w" * 100, "pytorch_model.bin": b"b" * 2000, "x.gguf": b"g" * 48})
        result = self.pull(hub)
        self.assertIn("2 files in other formats (2.0 KiB) are left out, such as pytorch_model.bin: --all",
                      result.stderr)
        self.expect_complete(hub, left_out=("pytorch_model.bin", "x.gguf"))
        self.expect_pulled(hub, "--all")

    def test_a_blob_of_another_size_is_replaced(self):
        hub = self.hub({WEIGHTS: random.randbytes(5000)})
        self.expect_pulled(hub)
        (self.repo / "blobs" / sha256(hub.files[WEIGHTS])).write_bytes(b"half")
        self.expect_pulled(hub)

    def test_folders_of_the_cache(self):
        hub = self.hub({"config.json": b"{}"})
        for variables, root in (({"HF_HUB_CACHE": "a"}, "a"), ({"HUGGINGFACE_HUB_CACHE": "b"}, "b"),
                                ({"HF_HOME": "c"}, "c/hub"), ({"XDG_CACHE_HOME": "d"}, "d/huggingface/hub"),
                                ({"HF_HUB_CACHE": "e", "HF_HOME": "f"}, "e")):
            variables = {name: str(self.folder / value) for name, value in variables.items()}
            result = self.pull(hub, **variables)
            self.assertEqual(result.stdout, f"{self.folder / root}/models--some--Model/snapshots/{COMMIT}\n")
        self.assertFalse(self.cache.exists())


class Failing(PullTest):
    def test_cut_connections_are_continued(self):
        hub = self.hub(large_files())
        hub.faults[WEIGHTS] = [cut(100_000), cut(3 * MIB), cut(1)]
        hub.faults["config.json"] = [cut(1)]
        result = self.expect_pulled(hub)
        self.assertIn(f"{WEIGHTS}: ", result.stderr)
        self.assertIn("; try 2 of 5 in 1 s", result.stderr)
        served = [each.headers["Range"] for each in hub.downloads(WEIGHTS)]
        self.assertEqual(len(served), len(set(served)), "a byte that was received is not requested again")

    def test_a_server_that_always_cuts(self):
        hub = self.hub({WEIGHTS: random.randbytes(MIB)})
        hub.faults[WEIGHTS] = [cut(10) for _ in range(9)]
        self.expect_error(self.pull(hub, "--tries", 2), f"cannot fetch {WEIGHTS}", "(2 tries)")
        self.expect_nothing_in_place(sha256(hub.files[WEIGHTS]))
        hub.faults.clear()
        self.expect_pulled(hub)

    def test_wrong_hashes(self):
        for path in ("config.json", WEIGHTS):
            hub = self.hub({"config.json": b"{}", WEIGHTS: random.randbytes(100_000)})
            hub.faults[path] = [wrong_bytes()]
            oid = sha256(hub.files[path]) if path in hub.large else git_sha1(hub.files[path])
            self.expect_error(self.pull(hub), path, oid, "not kept")
            self.expect_nothing_in_place(oid, oid + ".dsv4-part")
            self.expect_pulled(hub)
            shutil.rmtree(self.repo)

    def test_a_hub_that_contradicts_itself(self):
        hub = self.hub({WEIGHTS: random.randbytes(1000)})
        hub.linked_etags[WEIGHTS] = "a" * 64
        self.expect_error(self.pull(hub), WEIGHTS, "a" * 64, "the hub lists the hash")
        self.expect_nothing_in_place(sha256(hub.files[WEIGHTS]))

    def test_busy_servers_are_tried_again(self):
        hub = self.hub({WEIGHTS: random.randbytes(1000)})
        soon = email.utils.formatdate(time.time() + 2, usegmt=True)
        for path, fault in (("revision", status(429, {"Retry-After": "1"})), ("tree", status(500)),
                            ("resolve:" + WEIGHTS, status(504)), (WEIGHTS, status(503, {"Retry-After": soon}))):
            hub.faults[path] = [fault]
            begin = time.monotonic()
            result = self.expect_pulled(hub)
            self.assertGreaterEqual(time.monotonic() - begin, 0.9)
            self.assertIn("; try 2 of 5 in ", result.stderr)
            shutil.rmtree(self.repo)

    def test_busy_servers_are_not_tried_forever(self):
        hub = self.hub({WEIGHTS: random.randbytes(1000)})
        hub.faults["tree"] = [status(503)] * 9
        self.expect_error(self.pull(hub, "--tries", 2), "the server answers 503 (2 tries)")
        self.assertEqual(len(hub.faults["tree"]), 7)
        hub.faults["tree"] = [status(429, {"Retry-After": "86400"})]
        self.expect_error(self.pull(hub), "the server answers 429, and wants 86400 seconds of pause")
        self.expect_nothing_in_place()

    def test_refusals(self):
        hub = self.hub({WEIGHTS: b"w"})
        self.expect_error(self.pull(hub, model="other/Model"), "cannot fetch other/Model: the server answers 404 "
                          "(Repository not found): check the name and the revision")
        hub.faults[WEIGHTS] = [status(404)]
        self.expect_error(self.pull(hub), WEIGHTS, "404")
        hub.token = "hf_secret"
        self.expect_error(self.pull(hub), "401", "set HF_TOKEN")
        self.expect_error(self.pull(hub, HF_TOKEN="hf_wrong"), "403", "its terms were not accepted")
        self.expect_error(self.pull(hub, HF_TOKEN="hf a\n b"), "HF_TOKEN holds characters that no token has")
        self.expect_nothing_in_place()
        for name in ("demo", "a/b/c", "a/b@", "a/../b", "./a"):
            self.expect_error(self.pull(hub, model=name), "is no name of the hub")

    def test_a_server_that_drips(self):
        hub = self.hub({WEIGHTS: random.randbytes(100_000)})
        hub.faults[WEIGHTS] = [drip(20), drip(20)]
        self.expect_error(self.pull(hub, "--timeout", 1, "--tries", 2), WEIGHTS, "(2 tries)")
        hub.faults[WEIGHTS] = [drip(20)]
        self.expect_pulled(hub, "--timeout", 1)

    def test_a_file_that_changes_its_size(self):
        for listed, size in ((1000, 999), (1000, 1001), (20 * MIB, 20 * MIB + 1)):
            hub = self.hub({WEIGHTS: random.randbytes(listed)})
            hub.faults[WEIGHTS] = [other_size(size)] * 9
            self.expect_error(self.pull(hub), WEIGHTS,
                              f"the hub lists {listed} bytes, and its server has {size}")
            self.expect_nothing_in_place(sha256(hub.files[WEIGHTS]))

    def test_a_server_that_sends_other_bytes(self):
        hub = self.hub({WEIGHTS: random.randbytes(9 * MIB)})
        hub.faults[WEIGHTS] = [cut(100), *[other_range()] * 9]
        self.expect_error(self.pull(hub, "--connections", 1), WEIGHTS, "were requested, and the server sends 0-")
        self.expect_nothing_in_place(sha256(hub.files[WEIGHTS]))

    def test_a_server_without_ranges(self):
        hub = self.hub({WEIGHTS: random.randbytes(3 * MIB)})
        hub.faults[WEIGHTS] = [cut(100_000), whole_file()]
        self.expect_pulled(hub)
        shutil.rmtree(self.repo)
        hub = self.hub({WEIGHTS: random.randbytes(9 * MIB)})
        hub.faults[WEIGHTS] = [whole_file()] * 9
        self.expect_error(self.pull(hub), WEIGHTS, "the whole file where a range was requested")

    def test_no_server(self):
        result = self.run_dsv4("pull", "some/Model", "--tries", 2, HF_ENDPOINT="http://localhost:1")
        self.expect_error(result, "cannot fetch some/Model", "(2 tries)")
        for endpoint in ("file:///etc/passwd", "hub.example", "https://user@hub.example", "ftp://a"):
            self.expect_error(self.run_dsv4("pull", "some/Model", HF_ENDPOINT=endpoint), "HF_ENDPOINT: '")

    def test_without_space(self):
        hub = self.hub({"config.json": b"{}", WEIGHTS: b"w"})
        hub.listed[WEIGHTS] = {"lfs": {"oid": "b" * 64, "size": 1 << 45}}
        self.expect_error(self.pull(hub), "32768.00 GiB are to be fetched, and the disk of ", "HF_HUB_CACHE")
        self.assertEqual([each for each in hub.requests if "/resolve/" in each.path], [])
        self.expect_nothing_in_place()

    def test_a_cache_that_cannot_be_written(self):
        hub = self.hub({"config.json": b"{}"})
        (self.folder / "file").write_text("")
        self.expect_error(self.pull(hub, HF_HUB_CACHE=str(self.folder / "file")), "cannot create")


class Interrupting(PullTest):
    def start(self, hub, *options):
        return subprocess.Popen([BINARY, "pull", "some/Model", *map(str, options)], env=self.environment(hub),
                                cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def kill_midway(self, hub, by=signal.SIGKILL):
        hub.delay = 0.005
        running = self.start(hub, "--connections", 4)
        deadline = time.monotonic() + 30
        part = self.repo / "blobs" / (sha256(hub.files[WEIGHTS]) + ".dsv4-part")
        while time.monotonic() < deadline and self.recorded(part, len(hub.files[WEIGHTS])) < 4 * MIB:
            self.assertIsNone(running.poll(), "it was not slow enough to be killed")
            time.sleep(0.02)
        running.send_signal(by)
        out, _ = running.communicate()
        self.assertEqual(running.returncode, -by)
        self.assertEqual(out, "")
        hub.delay = 0
        hub.requests.clear()
        return part

    @staticmethod
    def recorded(part, size):
        """Bytes that the record behind the file counts."""
        if not part.exists() or part.stat().st_size <= size + 16:
            return 0
        with open(part, "rb") as file:
            file.seek(size + 16)
            entries = file.read()
        return sum(int.from_bytes(entries[at:at + 8], "little") for at in range(0, len(entries), 8))

    def requested(self, hub):
        total = 0
        for each in hub.downloads(WEIGHTS):
            first, last = each.headers["Range"].removeprefix("bytes=").split("-")
            total += int(last) + 1 - int(first)
        return total

    def test_a_killed_pull_continues(self):
        for by in (signal.SIGKILL, signal.SIGINT):
            hub = self.hub({"config.json": (MODEL / "config.json").read_bytes(), WEIGHTS: random.randbytes(24 * MIB)})
            self.kill_midway(hub, by)
            self.expect_nothing_in_place(sha256(hub.files[WEIGHTS]))
            for command in ("run", "inspect", "plan", "tokenize"):
                self.expect_error(self.run_dsv4(command, "some/Model", HF_HUB_OFFLINE="1"),
                                  "`dsv4 pull some/Model` fetches it")
            self.expect_pulled(hub)
            self.assertLessEqual(self.requested(hub), 20 * MIB)
            shutil.rmtree(self.repo)

    def test_a_damaged_part_is_fetched_again(self):
        hub = self.hub({WEIGHTS: random.randbytes(24 * MIB)})
        part = self.kill_midway(hub)
        with open(part, "r+b") as file:
            byte = file.read(1)
            file.seek(0)
            file.write(bytes([byte[0] ^ 1]))
        result = self.expect_pulled(hub)
        self.assertIn("what an earlier run left was damaged, all of it is fetched again", result.stderr)
        self.assertGreater(self.requested(hub), 24 * MIB)

    def test_two_at_once(self):
        hub = self.hub(large_files() | {f"{i}.safetensors": random.randbytes(5 * MIB) for i in range(3)})
        hub.delay = 0.001
        running = [self.start(hub) for _ in range(2)]
        for each in running:
            out, err = each.communicate(timeout=120)
            self.assertEqual(each.returncode, 0, err)
            self.assertEqual(out, f"{self.snapshot}\n")
        self.expect_complete(hub)
        starts = [(each.path, each.headers.get("Range")) for each in hub.requests if each.path.startswith("/storage/")]
        self.assertEqual(len(starts), len(set(starts)), "no range is fetched twice")

    def test_one_waits_for_another(self):
        hub = self.hub({WEIGHTS: random.randbytes(1000)})
        lock = self.cache / ".locks/models--some--Model" / (sha256(hub.files[WEIGHTS]) + ".lock")
        lock.parent.mkdir(parents=True)
        with open(lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            running = self.start(hub)
            self.assertRegex(running.stderr.readline() + running.stderr.readline(),
                             "another program is fetching model.safetensors")
            self.assertEqual(hub.downloads(WEIGHTS), [])
            fcntl.flock(file, fcntl.LOCK_UN)
        self.assertEqual(running.communicate()[0], f"{self.snapshot}\n")
        self.expect_complete(hub)


if __name__ == "__main__":
    unittest.main()
