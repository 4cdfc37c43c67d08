"""The command, blocks and tables that all pages share, and what fuzz.py and quality.py make of small results. Run: python3 FILE."""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import architecture
import common
import fuzz
import quality
import quantize


class Shared(unittest.TestCase):
    def settle(self, wanted, check):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(common, "ROOT", Path(folder)):
            (Path(folder) / "old.md").write_text("old\n")
            with contextlib.redirect_stderr(io.StringIO()) as errors:
                good = common.settle(wanted, check)
            return good, errors.getvalue(), {path.name: path.read_text() for path in Path(folder).rglob("*.md")}

    def test_check_reports_and_writes_nothing(self):
        good, errors, files = self.settle({"old.md": "new\n", "docs/more.md": "more\n"}, True)
        self.assertEqual((good, files), (False, {"old.md": "old\n"}))
        self.assertEqual(errors.splitlines(), [f"{name} is stale: run python3 tools/pages" for name in ("old.md", "docs/more.md")])

    def test_stale_and_missing_pages_are_written(self):
        self.assertEqual(self.settle({"old.md": "new\n", "docs/more.md": "more\n"}, False)[2], {"old.md": "new\n", "more.md": "more\n"})
        self.assertEqual(self.settle({"old.md": "old\n"}, True)[:2], (True, ""))

    def test_tables_and_blocks(self):
        self.assertEqual(common.table("a | | c", common.row(1, "", "x")), ["| a | | c |", "|---|---|---|", "| 1 |  | x |"])
        self.assertEqual(common.with_block("1 <!-- m -->\nold\n<!-- /m --> 2", "m", r"\1 new"), "1 <!-- m -->\n\\1 new\n<!-- /m --> 2")

    def test_unknown_page(self):
        ran = subprocess.run([sys.executable, Path(__file__).parent, "--check", "nothing"], capture_output=True, text=True)
        self.assertEqual(ran.returncode, 2)
        self.assertIn("no page nothing: one of performance, prefill, quality, xattention, fuzz", ran.stderr)


class Fuzz(unittest.TestCase):
    def test_runs_of_a_fuzzer_are_summed(self):
        run = {"fuzzer": "config", "executions": 1000, "cpu_s": [1.5, 0.5], "date": "d1", "commit": "c1", "status": 0}
        found = fuzz.summed([run, {**run, "date": "d2", "commit": "c2", "status": 1}])
        self.assertEqual(fuzz.line_of(found["config"]), "| `config` | 2,000 | 500 | d2 | c2 | 1 |")


class Quality(unittest.TestCase):
    def test_committed_claims_hold_and_a_broken_one_is_named(self):
        result = quality.results()[0]
        self.assertEqual(list(quality.broken_claims(result)), [])
        next(r for r in result["rows"] if r["experts"] == "k4-e2m1")["top1"] = 0.99
        self.assertEqual([claim.split(":")[0] for claim in quality.broken_claims(result)], ["k4-e2m1 equals the official model"])


class Quantize(unittest.TestCase):
    def test_rows_of_what_was_measured(self):
        run = {"cpu": "C", "threads": 16, "device": "GPU", "layers": 4, "weights_per_s": 5e9, "peak_rss_bytes": 2**30,
               "flags": ["--experts", "k3", "--scales", "search"]}
        conversion = {"op": "quantize_kbit", "impl": "cuda", "shape": "k3 x", "us": 100.0, "percent_copy": 40.4}
        skipped = {"op": "quantize_kbit", "impl": "cuda", "shape": "k4 x", "skipped": "why"}
        ops = {"device": "GPU", "filter": "F", "results": [conversion, skipped, {**conversion, "op": "other"}]}
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(quantize, "RESULTS", Path(folder)):
            self.assertEqual((len(quantize.conversions()), quantize.kernels()), (2, []))
            (Path(folder) / "gpu-h200").mkdir()
            (Path(folder) / "gpu-h200/quantize_flash.json").write_text(json.dumps(run))
            (Path(folder) / "gpu-h200/ops_conversions.json").write_text(json.dumps(ops))
            self.assertEqual(quantize.conversions()[2:], ["| C, 16 threads, GPU | `k3`, search | 4 | 5.00 | 1 min | 1,024 MiB |"])
            self.assertEqual(quantize.kernels()[5:], ["| `quantize_kbit` | k3 x | 100.0 | 84 | 40 % |"])


class ArchitectureTest(unittest.TestCase):
    def test_table_of_a_step(self):
        def call(depth, op, impl, calls=1):
            return {"depth": depth, "op": op, "impl": impl, "calls": calls, "refusals": []}
        report = {"tables": [
            {"tokens": 1, "calls": [call(0, "moe", "sm90_fused", 43), call(0, "linear", "cuda")]},
            {"tokens": 4096, "calls": [call(0, "moe", "parts", 43), call(1, "router", "cuda", 43),
                                       call(1, "linear", "cublaslt", 43), call(0, "linear", "cuda")]}]}
        self.assertEqual(architecture.lines_of(report), [
            "| op | 1 token | 4096 tokens |", "|---|---|---|",
            "| `moe` | `sm90_fused` | `parts` |",
            "| `linear` | `cuda` | `cublaslt` 43, `cuda` 1 |",
            "| `router` | - | `cuda` |"])


if __name__ == "__main__":
    unittest.main()
