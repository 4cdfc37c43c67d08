"""Gives check_speed.py runs that are slow, incomplete or of another GPU and checks what it says. Run: python3 FILE."""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest

import check_speed

OF = "m, k3, , 2, official"
MINIMUMS = {"least_share": 0.9, "GPU": {
    "decode_batches": {"of": OF, "batch 8, context 64: tokens/s": 100},
    "ops": {"linear s: us": 9.0},
    "peer_sparse_mla": {"a: TFLOPS": 200, "b: us": 18},
    "peer_xattn": {"scores, 64 tokens, 2: ms": 9},
    "peer_kbit": {"64 -> 32, K = 3, 1 rows, bfloat16: us": 9},
    "peer_kbit_moe": {"experts of m, K = 3, 8 tokens: us": 18, "experts of m, K = 3, 8 tokens, images: us": 9}},
    "2x GPU": {"ranks": {"of": OF, "batch 8, context 64: tokens/s": 150, "batch 8, context 64, 2 drafts: tokens/s": 300},
               "ranks_exchange": {"exchange of 1024 bytes: us": 3}}}


def decode(rate=100, experts="k3"):
    return {"device": "GPU", "model": "m", "experts": experts, "dense": "", "layers": 2, "numerics": "official",
            "results": [{"batch": 8, "context": 64, "tokens_per_second": rate}]}


def ranks(rate=150, drafts=300, count=2, shard=None):
    report = {**decode(rate), "ranks": count, "shard": shard}
    report["results"].append({**report["results"][0], "tokens_per_second": drafts, "draft_tokens": 2})
    return report


def exchange(us=3):
    return {"device": "GPU", "ranks": 2, "processes": False, "results": [{"bytes": 1024, "us": us}]}


def ops(*times):
    return {"device": "GPU", "results": [{"op": "linear", "shape": "s", "impl": str(i), "us": us} for i, us in enumerate(times)]
            + [{"op": "linear", "shape": "s", "impl": "x", "skipped": "why"}]}


def mla(tflops=200, us=18):
    return {"device": "GPU", "results": [{"case": "a", "unit": "TFLOPS", "ours": tflops}, {"case": "b", "unit": "us", "ours": us}]}


def xattn(second=9):
    return {"device": "GPU", "results": [{"what": "scores", "tokens": 64, "ms": {"ours": ms}} for ms in (1, second)]}


def kbit(us=9):
    """Generic codebooks and images have no minimum."""
    row = {"op": "kbit_linear", "k": 3, "k_in": 64, "n": 32, "m": 1, "dtype": "bfloat16"}
    kinds = [("e4m3", "rows", us), ("nf", "rows", 99), ("e4m3", "image", 99)]
    return {"device": "GPU", "results": [{**row, "codebook": book, "layout": layout, "us": {"chosen": t, "cuda": 1}}
                                         for book, layout, t in kinds]}


def moe(rows=18, images=9):
    return {"device": "GPU", "results": [{"op": "kbit_moe", "model": "m", "k": 3, "t": 8, "us": {"chosen": rows, "image": images}}]}


def run(*options, minimums=MINIMUMS, **reports):
    """(exit status, output, minimums afterwards)."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "run").mkdir()
        (path / "run/broken.json").write_text("")  # a program failed
        (path / "minimums").write_text(json.dumps(minimums))
        for name, report in reports.items():
            (path / f"run/{name}.json").write_text(json.dumps(report))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = check_speed.main([*options, "--minimums", str(path / "minimums"), str(path / "run")])
        return status, out.getvalue(), json.loads((path / "minimums").read_text())


class CheckSpeed(unittest.TestCase):
    def said(self, **reports):
        status, out, _ = run(**reports)
        return status, [line for line in out.splitlines() if line.startswith("slow")]

    def test_equal_and_slightly_slower_speeds_hold(self):
        for change in (1, 0.91):
            status, out, _ = run(decode_batches=decode(100 * change), ops=ops(50, 9 / change), peer_sparse_mla=mla(200 * change, 18 / change),
                                 peer_xattn=xattn(9 / change), peer_kbit=kbit(9 / change), peer_kbit_moe=moe(18 / change, 9 / change))
            self.assertEqual((status, out), (0, "8 speeds hold, 0 do not: 90 % of bench/results/minimums.json\n"))

    def test_each_kind_of_report_can_fail(self):
        self.assertEqual(self.said(decode_batches=decode(89)), (1, ["slow: decode_batches: batch 8, context 64: tokens/s 89, 89 % of 100"]))
        self.assertEqual(self.said(ops=ops(10.2, 11)), (1, ["slow: ops: linear s: us 10.2, 88 % of 9"]))
        self.assertEqual(self.said(peer_sparse_mla=mla(tflops=170)), (1, ["slow: peer_sparse_mla: a: TFLOPS 170, 85 % of 200"]))
        self.assertEqual(self.said(peer_sparse_mla=mla(us=24)), (1, ["slow: peer_sparse_mla: b: us 24, 75 % of 18"]))
        self.assertEqual(self.said(peer_xattn=xattn(18)), (1, ["slow: peer_xattn: scores, 64 tokens, 2: ms 18, 50 % of 9"]))

    def test_products_of_few_bits_can_fail(self):
        self.assertEqual(self.said(peer_kbit=kbit(12)), (1, ["slow: peer_kbit: 64 -> 32, K = 3, 1 rows, bfloat16: us 12, 75 % of 9"]))
        self.assertEqual(self.said(peer_kbit_moe=moe(rows=36)), (1, ["slow: peer_kbit_moe: experts of m, K = 3, 8 tokens: us 36, 50 % of 18"]))
        self.assertEqual(self.said(peer_kbit_moe=moe(images=12)),
                         (1, ["slow: peer_kbit_moe: experts of m, K = 3, 8 tokens, images: us 12, 75 % of 9"]))

    def test_the_fastest_implementation_counts(self):
        self.assertEqual(self.said(ops=ops(90, 9)), (0, []))

    def test_a_speed_that_is_missing_fails(self):
        self.assertEqual(self.said(ops=ops()), (1, ["slow: ops: linear s: us was not measured"]))

    def test_other_models_and_reports_are_named_and_not_compared(self):
        status, out, _ = run(decode_batches=decode(1, "k2"), ops=ops(9))
        self.assertEqual(status, 0)
        self.assertIn(f"skipped: decode_batches: measured m, k2, , 2, official, committed is {OF}\n", out)
        self.assertIn("skipped: peer_xattn: the run has no such report\n", out)

    def test_several_gpus_have_minimums_of_their_own(self):
        self.assertEqual(self.said(ranks=ranks(), ranks_exchange=exchange(), decode_batches=decode()), (0, []))
        self.assertEqual(self.said(ranks=ranks(drafts=200)),
                         (1, ["slow: ranks: batch 8, context 64, 2 drafts: tokens/s 200, 67 % of 300"]))
        self.assertEqual(self.said(ranks_exchange=exchange(4)),
                         (1, ["slow: ranks_exchange: exchange of 1024 bytes: us 4, 75 % of 3"]))
        self.assertEqual(run(ranks=ranks(count=4))[:2], (77, "no speed of 4x GPU to compare with\n"))
        status, out, _ = run(ranks=ranks(shard="0/2"))
        self.assertEqual(status, 77, "a rank alone is not two GPUs: " + out)

    def test_nothing_to_compare_is_no_success(self):
        self.assertEqual(run()[0], 77)
        self.assertEqual(run(ops={**ops(9), "device": "other"})[:2], (77, "no speed of other to compare with\n"))

    def test_record_keeps_the_chosen_ops_and_adds_peers(self):
        _, _, now = run("--record", decode_batches=decode(120), ops={**ops(8), "results": ops(8)["results"] + [{"op": "o", "shape": "", "us": 1}]},
                        peer_sparse_mla=mla(us=17), peer_kbit=kbit(8))
        self.assertEqual(now["GPU"]["peer_kbit"], {"64 -> 32, K = 3, 1 rows, bfloat16: us": 8})
        self.assertEqual(now["GPU"]["decode_batches"], {"of": OF, "batch 8, context 64: tokens/s": 120})
        self.assertEqual(now["GPU"]["ops"], {"linear s: us": 8})
        self.assertEqual(now["GPU"]["peer_sparse_mla"], {"a: TFLOPS": 200, "b: us": 17})
        self.assertEqual(now["GPU"]["peer_xattn"], MINIMUMS["GPU"]["peer_xattn"])

    def test_committed_results_hold_their_own_minimums(self):
        for folder in sorted(check_speed.MINIMUMS.parent.glob("gpu-*")):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                self.assertEqual(check_speed.main([str(folder)]), 0, out.getvalue())


if __name__ == "__main__":
    unittest.main()
