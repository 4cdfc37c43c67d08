"""bench/peer_sparse_mla.py without torch: its table, its comparison of two times, its options."""

import pathlib
import subprocess
import sys

import pytest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import peer_sparse_mla  # noqa: E402
import peer_table  # noqa: E402

H100 = "NVIDIA H100 80GB HBM3"
CASES = {case["name"]: case for case in peer_table.load()["cases"]}
SMALL, LARGE = CASES["Flash b32 s_q1 h64 d512 128+512 rows"], CASES["Flash b128 s_q2 h64 d512 128+512 rows"]
PREFILL = CASES["prefill s_q4096 s_kv8192 h128 d576 2048 rows"]


def name_of(case):
    """As dsv4/ops/model/sparse_mla/sparse_mla_bench.cc names it, after the model."""
    if "topk" in case:
        return "prefill s_q{s_q} s_kv{s_kv} h{h} d{d} {topk} rows".format(**case)
    first, second = [*(topk for topk, _ in case["lists"]), 0][:2]
    return "b{b} s_q{s_q} h{h} d{d} ".format(**case) + f"{first}+{second} rows"


def test_case_names_match_their_sizes():
    for name, case in CASES.items():
        assert name.endswith(name_of(case)) and case["unit"] in ("us", "TFLOPS")
        assert ("minimum" in case) == ("aim" in case)


def test_targets_are_faster_than_the_peer():
    for name, case in CASES.items():
        if "minimum" in case:
            aim, minimum, peer = (peer_table.converted(case, v)  # all as times
                                  for v in (case["aim"], case["minimum"], case["peer"]["H100"]))
            assert aim < minimum <= peer, name


def test_flops_match_the_measured_table():
    """docs/spec/attention-kernels.md 1.7 gives both numbers of a case: 95.3 us are 225 TFLOPS, 362.5 us are 403."""
    assert peer_table.converted(LARGE, 95.3) == pytest.approx(225, abs=1)
    assert peer_table.converted(CASES["V3.2 b128 s_q2 h128 d576 2048+0 rows"], 362.5) == pytest.approx(403, abs=1)
    assert peer_table.flops(PREFILL) == 2 * 4096 * 128 * 2048 * (576 + 512)
    assert peer_table.converted(LARGE, peer_table.converted(LARGE, 80.0)) == pytest.approx(80)
    assert peer_table.converted(SMALL, 24.7) == 24.7 and peer_table.converted(LARGE, None) is None


def test_table_replaces_a_missing_peer():
    result = peer_table.compare(SMALL, H100, 12.35)
    assert (result["peer"], result["peer_us"], result["ratio"]) == ("table", 24.7, 2.0)
    assert (result["ours"], result["minimum"], result["aim"]) == (12.35, 13, 9)
    assert peer_table.compare(SMALL, "NVIDIA H200", 22.9)["ratio"] == 1
    large = peer_table.compare(LARGE, H100, 50.0)
    assert large["theirs"] == pytest.approx(225) and large["ratio"] == pytest.approx(large["ours"] / 225)


def test_no_number_for_unmeasured_gpus_and_cases():
    for result in (peer_table.compare(SMALL, "NVIDIA A100-SXM4-80GB", 30.0),
                   peer_table.compare(CASES["Flash b8 s_q2 h64 d512 128+512 rows"], H100, 30.0)):
        assert (result["peer"], result["peer_us"], result["theirs"], result["ratio"]) == (None,) * 4
        assert "peer" not in peer_table.line(result)


def test_measured_peer_takes_precedence():
    result = peer_table.compare(SMALL, H100, 10.0, 25.0)
    assert (result["peer"], result["peer_us"], result["ratio"]) == ("measured", 25.0, 2.5)
    assert peer_table.line(result) == ("Flash b32 s_q1 h64 d512 128+512 rows: 10.0 us, peer 25.0 us (measured), "
                                       "ratio 2.50, minimum 13.0 us, aim 9.0 us")


def test_options():
    options = peer_sparse_mla.arguments(["--out", "x.json", "--filter", "Flash", "--replays", "3"])
    assert (options.out, options.filter, options.replays, options.calls) == ("x.json", "Flash", 3, 20)
    with pytest.raises(SystemExit):
        peer_sparse_mla.arguments(["--repeats", "3"])


def test_names_the_missing_module():
    run = subprocess.run([sys.executable, "-S", BENCH / "peer_sparse_mla.py"], capture_output=True, text=True)
    assert run.returncode == 77 and run.stdout.startswith("peer_sparse_mla: torch: No module")
