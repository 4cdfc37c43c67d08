"""bench/peer_kbit.py on small shapes of a CPU, without times: which cases it has, and that it stops at a wrong product."""

import pathlib
import sys

import dsv4_kernels
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

import kbit_shapes  # noqa: E402
import peer_kbit  # noqa: E402

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    def without_times(_, calls):
        for call in calls:
            call()
        return len(calls)
    monkeypatch.setattr(peer_kbit, "DEVICE", "cpu")
    monkeypatch.setattr(peer_kbit, "replay_us", without_times)
    monkeypatch.setattr(peer_kbit, "ROTATE", 1 << 14)
    monkeypatch.setattr(peer_kbit, "ROWS", (1, 8, 100))
    monkeypatch.setitem(peer_kbit.MOE, "flash", (16, 64, 32, 3, (1, 70)))
    for other in ("qwen3-coder-next", "glm-4.7-flash"):
        monkeypatch.delitem(peer_kbit.MOE, other)


def pool(kernels=dsv4_kernels):
    return peer_kbit.Pool(torch, kernels, 1 << 12)


def test_shapes_of_several_models_are_listed_once():
    every = kbit_shapes.shapes_of_models()
    assert every[4096, 2048] == "Qwen3-Coder-Next: o; V4-Flash: shared w1, w3"
    assert {(8192, 8192), (28672, 8192), (2048, 512), (10240, 2048), (1024, 32768)} <= set(every)
    assert all(k_in % 32 == 0 for k_in, _ in every)
    assert list(kbit_shapes.shapes_of_models(["Llama-3 8B"])) == [(4096, 14336), (14336, 4096), (4096, 4096)]
    with pytest.raises(SystemExit, match="no model Llama"):
        kbit_shapes.shapes_of_models(["Llama"])


def test_cases_of_all_shapes():
    """More weights in turn than ROTATE together, generic codebooks and images where they are wanted."""
    rows = list(peer_kbit.all_shapes(pool(), [(128, 96)], 4e12))
    kinds = {}
    for row in rows:
        kinds.setdefault((row["codebook"], row["layout"]), []).append((row["k"], row["m"]))
        assert row["us"]["chosen"] == max(2, (1 << 14) * 32 // (96 * 128 * (4 * row["k"] + 1)) + 1)
        assert row["cublas_us"] == 2 and row["error"]["chosen"] < 2.0**-6 and row["dtype"] == "bfloat16"
    each = lambda bits, rows: [(k, m) for k in bits for m in rows]
    assert kinds == {("e4m3", "rows"): each((2, 3, 4, 5), (1, 8, 100)), ("nf", "rows"): each((3, 4), (1, 8)),
                     ("e4m3", "image"): each((2, 3, 4), (1, 8))}


def test_cases_by_name():
    rows = list(peer_kbit.by_name(pool(), [(64, 32)], (1, 100), 4e12))
    assert [(r["k"], r["m"], r["dtype"]) for r in rows[:4]] == [(2, 1, "bfloat16"), (2, 1, "float16"), (2, 100, "bfloat16"), (2, 100, "float16")]
    assert len(rows) == 16 and all(set(r["us"]) == {"chosen"} for r in rows)  # a CPU has none of the names
    assert peer_kbit.add_humming(torch, rows).startswith(("not installed", "humming"))


def test_cases_of_experts():
    rows = list(peer_kbit.moe_cases(torch, dsv4_kernels, 4e12))
    assert [(r["model"], r["t"], set(r["us"])) for r in rows] == [("flash", 1, {"chosen", "image"}), ("flash", 70, {"chosen", "image"})]
    first, second = peer_kbit.routings(torch, 16, 3, 2)
    assert len({*first.flatten().tolist(), *second.flatten().tolist()}) == 12  # no expert is met twice
    many = peer_kbit.routings(torch, 16, 3, 70)
    assert len(many) == peer_kbit.MOE_TURNS and all(len(set(one.tolist())) == 3 for turn in many for one in turn)


def test_a_wrong_product_stops_it():
    class Wrong:
        def __getattr__(self, name):
            return getattr(dsv4_kernels, name)

        @staticmethod
        def kbit_linear(*args, **options):
            out = dsv4_kernels.kbit_linear(*args, **options)
            out[-1, -1] += 1 + out.abs().max()
            return out
    with pytest.raises(SystemExit, match="wrong: chosen"):
        list(peer_kbit.all_shapes(pool(Wrong()), [(128, 96)], 4e12))
