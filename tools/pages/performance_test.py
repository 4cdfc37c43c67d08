"""Output of performance.py and decode_step.py for small reports and for the committed ones. Run: python3 FILE."""

import unittest

import decode_step
import performance
from common import RESULTS


def result(**changes):
    return {"case": "Flash b1", "unit": "us", "ours": 8.04, "peer": "table", "theirs": 12.3, "ratio": 12.3 / 8.04,
            "minimum": 8, "aim": 6.5, "note": None, **changes}


class PeerSection(unittest.TestCase):
    def lines(self, peer, *results):
        return performance.peer_section({"peer": peer, "source": "a table", "targets": "issue 5", "calls": 20,
                                              "results": list(results)})

    def test_table_replaces_a_missing_peer(self):
        lines = self.lines("table", result())
        self.assertIn("| Flash b1 | 12.3 us (table) | 8.0 us | 1.53 | 8.0 us | 6.5 us |", lines)
        self.assertIn("`flash_mla` was not installed", lines[2])

    def test_peer_in_the_same_run(self):
        measured = result(unit="TFLOPS", peer="measured", theirs=225.4, ours=300.2, ratio=1.33, minimum=340, aim=390)
        lines = self.lines("flash_mla", measured)
        self.assertIn("| Flash b1 | 225 TFLOPS (measured) | 300 TFLOPS | 1.33 | 340 TFLOPS | 390 TFLOPS |", lines)
        self.assertIn("`flash_mla` ran in the same run", lines[2])

    def test_unknown_values_stay_empty(self):
        unknown = result(peer=None, theirs=None, ratio=None, minimum=None, aim=None)
        self.assertIn("| Flash b1 |  | 8.0 us |  |  |  |", self.lines("table", unknown))
        self.assertIn("| Flash b1 |  | 8.0 us |  | as h64 |  |", self.lines("table", {**unknown, "note": "as h64"}))

    def test_page_has_smallest_median_and_largest_ratio(self):
        results = [result(case=f"case {ratio}", ratio=ratio) for ratio in (2.0, 1.0, 3.0)] + [result(ratio=None)]
        rows = list(performance.ratio_rows({"peer_sparse_mla": {"device": "GPU", "date": "2026-11-22", "results": results}}))
        self.assertTrue(rows[0].startswith("| GPU, 2026-11-22 | smallest of 3 |"))
        self.assertEqual([row.split("|")[3].strip() for row in rows], ["case 1.0", "case 2.0", "case 3.0"])
        self.assertTrue(rows[0].endswith("| 12.3 us | 8.0 us | 1.00 |"))


def op_result(op, impl, us, shape="s"):
    return {"op": op, "impl": impl, "shape": shape, "us": us, "percent_copy": 2}


def op_report(*results):
    return {"device": "GPU", "copy_gb_per_s": 1, "matrix_tflop_per_s": 1, "results": list(results)}


class Ops(unittest.TestCase):
    def test_ops_measured_alone_are_left_out(self):
        report = op_report(op_result("linear", "cuda", 1), op_result("linear", "mma", 1), op_result("experts", "cuda", 1))
        lines = performance.op_table("", report, leave_out={"experts": {}})
        self.assertEqual(lines[-3:], ["| linear | s | cuda | 1.0 us | 2 % | 0 % |", "| linear | s | mma | 1.0 us | 2 % | 0 % |", ""])
        self.assertEqual(performance.label("experts/k3/t:1"), "experts K=3, matrix-vector, Flash shapes")

    def test_table_of_all_ops_only_where_they_were_measured(self):
        gpu = {"ops_sample": op_report(op_result("sample", "cuda", 1))}
        self.assertFalse(any("`dsv4_bench_cuda`" in line for line in performance.gpu_page(gpu)))
        gpu["ops"] = op_report(op_result("linear", "cuda", 3), op_result("sample", "cuda", 9))
        lines = performance.gpu_page(gpu)
        self.assertTrue(any("`dsv4_bench_cuda`" in line for line in lines))
        self.assertIn("| linear | s | cuda | 3.0 us | 2 % | 0 % |", lines)
        self.assertNotIn("| sample | s | cuda | 9.0 us | 2 % | 0 % |", lines)


    def test_committed_table_has_the_kernels_that_a_step_uses(self):
        shapes = {(r["op"], r["shape"].split("/t:")[0]) for r in performance.read_gpu(RESULTS / "gpu-h200")["ops"]["results"] if "us" in r}
        for wanted in (("experts", "k3-e4m3-image"), ("experts", "pro-k2-e4m3-image"), ("moe", "flash/k3-image")):
            self.assertIn(wanted, shapes)
        self.assertIn(("linear", "k5 to_q8"), shapes)  # few_gemm


class DecodeStep(unittest.TestCase):
    def gpu(self):
        return performance.read_gpu(RESULTS / "gpu-h200")

    def test_bytes_from_shapes_match_the_engine(self):
        for row in self.gpu()["decode_flash"]["results"]:
            counted = row["weight_bytes"] + row["cache_bytes"]
            self.assertAlmostEqual(decode_step.step_bytes(row["batch"], row["context"]) / counted, 1, places=6)

    def test_kernels_add_up_to_the_step(self):
        row = {"ms_per_step": 1.0, "kernels": [{"kernel": "a", "launches": 10, "us": 900.0},
                                               {"kernel": "experts_quantize", "launches": 90, "us": 400.0}]}
        self.assertAlmostEqual(decode_step.overhead_us(row), 3.0)
        rows = list(decode_step.kernel_rows(row))
        self.assertEqual(rows, ["| a | 10 | 0.2 | 87.0 us | 0.87 ms | 87 % |",
                                "| experts_quantize | 90 | 2.1 | 1.4 us | 0.13 ms | 13 % |"])

    def test_floor_grows_with_distinct_experts(self):
        self.assertEqual(decode_step.distinct(1), 6)
        self.assertAlmostEqual(decode_step.distinct(32), 136.1, places=1)
        self.assertLess(decode_step.distinct(10000), 256.0001)

    def test_fastest_op_alone_where_ops_were_measured(self):
        self.assertIn("| weight | layers | shape | format | MB | floor |", decode_step.weight_table(4e12, None))
        shape = "k3-e4m3-image/t:1"
        ops = op_report(op_result("experts", "sm90_few", 40, shape), op_result("experts", "sm90_few_e4m3", 20, shape))
        rows = [row for row in decode_step.weight_table(4e12, ops) if row.startswith("| routed experts")]
        self.assertTrue(rows[0].endswith("| 15.34 us | 20.0 us | 77 % |"), rows[0])

    def test_sections_only_for_gpus_that_ran_all_layers(self):
        gpu = self.gpu()
        self.assertIn("### NVIDIA H200", decode_step.block([gpu]))
        gpu["decode_flash"]["layers"] = 24
        self.assertEqual(decode_step.block([gpu]), "")


if __name__ == "__main__":
    unittest.main()
