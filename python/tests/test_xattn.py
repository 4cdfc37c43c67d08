"""XAttention's and Block-Sparse-Attention's interfaces without a GPU or torch: signatures, errors, and the CPU
implementation through NumPy against float64; thresholds and their calibration."""

import inspect
import json

import dsv4_kernels
import numpy
import pytest
import xattn_reference as reference
from dsv4_kernels import _safetensors, xattn_calibrate, xattn_mass

REQUIRED = inspect.Parameter.empty
ESTIMATE = [("query_states", REQUIRED), ("key_states", REQUIRED), ("block_size", REQUIRED), ("stride", REQUIRED),
            ("norm", 1), ("softmax", True), ("threshold", 0.9), ("chunk_size", 16384), ("select_mode", "inverse"),
            ("use_triton", True), ("causal", True), ("kdb", 1), ("keep_sink", False), ("keep_recent", False)]
PREFILL = [("query_states", REQUIRED), ("key_states", REQUIRED), ("value_states", REQUIRED), ("stride", REQUIRED),
           ("norm", 1), ("threshold", 0.8), ("block_size", 128), ("use_triton", True), ("causal", True), ("kdb", 1),
           ("chunk_size", None), ("keep_sink", False), ("keep_recent", False)]
GEMM = [("query_states", REQUIRED), ("key_states", REQUIRED), ("stride", REQUIRED), ("chunk_start", REQUIRED),
        ("chunk_end", REQUIRED), ("is_causal", True)]
BLOCK_SUM = [("attn_weights_slice", REQUIRED), ("reshaped_block_size", REQUIRED), ("segment_size", REQUIRED),
             ("chunk_start", REQUIRED), ("chunk_end", REQUIRED), ("real_q_len", REQUIRED), ("scale", REQUIRED),
             ("is_causal", True)]
SPARSE = [("q", REQUIRED), ("k", REQUIRED), ("v", REQUIRED), ("cu_seqlens_q", REQUIRED), ("cu_seqlens_k", REQUIRED),
          ("head_mask_type", REQUIRED), ("streaming_info", REQUIRED), ("base_blockmask", REQUIRED),
          ("max_seqlen_q_", REQUIRED), ("max_seqlen_k_", REQUIRED), ("p_dropout", REQUIRED), ("deterministic", False),
          ("softmax_scale", None), ("is_causal", False), ("exact_streaming", False), ("return_attn_probs", False)]


@pytest.mark.parametrize("function, want", [(dsv4_kernels.xattn_estimate, ESTIMATE),
                                            (dsv4_kernels.Xattention_prefill, PREFILL),
                                            (dsv4_kernels.flat_group_gemm_fuse_reshape, GEMM),
                                            (dsv4_kernels.softmax_fuse_block_sum, BLOCK_SUM),
                                            (dsv4_kernels.block_sparse_attn_func, SPARSE)])
def test_signature_is_the_peers(function, want):
    parameters = inspect.signature(function).parameters.values()
    assert [(p.name, p.default) for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY] == want


def random_states(rng, n_q, n_kv, heads=4, kv_heads=2, d=32, b=1, sharpness=3.0):
    """q [b, h, n_q, d], k and v [b, h_kv, n_kv, d] f32; q in the memory order that models use."""
    q = rng.standard_normal((b, n_q, heads, d)).astype(numpy.float32) * sharpness
    k, v = (rng.standard_normal((b, n_kv, kv_heads, d)).astype(numpy.float32) for _ in range(2))
    return tuple(x.swapaxes(1, 2) for x in (q, k, v))


def rows(states):
    return states[0].swapaxes(0, 1).astype(float)


@pytest.mark.parametrize("n_q, n_kv", [(700, 700), (300, 900), (129, 1000), (1, 300)])
@pytest.mark.parametrize("stride, causal", [(8, True), (16, True), (16, False)])
def test_estimate(n_q, n_kv, stride, causal):
    q, k, _ = random_states(numpy.random.default_rng([n_q, n_kv, stride]), n_q, n_kv)
    threshold = numpy.array([0.9, 0.5, 0.0, 1.0], numpy.float32)
    sums, mask = dsv4_kernels.xattn_estimate(q, k, 128, stride, norm=0.5, threshold=threshold, causal=causal)
    want = reference.block_sums(rows(q), rows(k), stride, causal=causal, norm=0.5)
    assert numpy.allclose(sums[0], want, 1e-4, 1e-5)
    first_block = (n_kv - n_q) // 128 if causal else 0
    assert numpy.array_equal(mask[0], reference.mask_of(sums[0].astype(float), threshold.astype(float), first_block,
                                                        causal))


@pytest.mark.parametrize("causal", [True, False])
def test_estimate_without_sink(causal):
    q, k, _ = random_states(numpy.random.default_rng(5), 700, 900)
    sums, mask = dsv4_kernels.xattn_estimate(q, k, 128, 8, threshold=0.5, causal=causal, no_sink=True)
    _, with_sink = dsv4_kernels.xattn_estimate(q, k, 128, 8, threshold=0.5, causal=causal)
    want = reference.mask_of(sums[0].astype(float), [0.5] * 4, (900 - 700) // 128 if causal else 0, causal, sink=False)
    assert numpy.array_equal(mask[0], want)
    assert with_sink[..., 0].all() and not mask[..., 0].all()


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float16])
def test_scores_of_groups(dtype):
    q, k, _ = (x.astype(dtype) for x in random_states(numpy.random.default_rng(6), 96, 128, sharpness=1.0))
    scores = dsv4_kernels.flat_group_gemm_fuse_reshape(q, k, 8, 4, 16)
    assert scores.shape == (1, 4, 12, 16) and scores.dtype == dtype
    for head, r, c in ((0, 0, 0), (3, 11, 15), (1, 2, 9)):
        want = sum(q[0, head, r * 8 + 7 - s].astype(float) @ k[0, head // 2, c * 8 + s].astype(float) for s in range(8))
        assert numpy.isclose(scores[0, head, r, c], want, 2e-3 if dtype == numpy.float16 else 1e-5, 1e-2)


# The stages after each other are the definition, and the sums that the fused kernel computes.
@pytest.mark.parametrize("n_q, n_kv, stride, causal", [(768, 768, 8, True), (256, 1024, 16, True), (256, 512, 4, False)])
def test_stages_are_the_estimate(n_q, n_kv, stride, causal):
    q, k, _ = random_states(numpy.random.default_rng([n_q, stride]), n_q, n_kv)
    start = (n_kv - n_q) // stride if causal else 0
    scale = numpy.log2(numpy.e) / 32**0.5 / stride / 0.5
    scores = dsv4_kernels.flat_group_gemm_fuse_reshape(q, k, stride, start, start + n_q // stride, causal)
    sums = dsv4_kernels.softmax_fuse_block_sum(scores, 128 // stride, 128 // stride, start, 0, n_kv // stride, scale, causal)
    want = reference.block_sums(rows(q), rows(k), stride, causal=causal, norm=0.5)
    assert numpy.allclose(sums[0], want, 1e-4, 1e-5)
    assert numpy.allclose(sums, dsv4_kernels.xattn_estimate(q, k, 128, stride, norm=0.5, causal=causal)[0], 1e-4, 1e-5)
    fewer = dsv4_kernels.softmax_fuse_block_sum(scores, 128 // stride, 128 // stride, start, 0, start + 5, scale, causal)
    assert numpy.allclose(fewer[0, :, 0].sum(-1), 5) and (fewer[0, :, 1:] == 0).all()


def test_lists_and_masks_are_inverse():
    rng = numpy.random.default_rng(3)
    mask = rng.random((2, 3, 5, 40)) < 0.3
    counts, indices = dsv4_kernels.block_lists_of(mask)
    assert counts.dtype == numpy.int32 and indices.dtype == numpy.int32
    assert numpy.array_equal(counts, mask.sum(-1))
    assert numpy.array_equal(indices[1, 2, 3, :counts[1, 2, 3]], numpy.flatnonzero(mask[1, 2, 3]))
    assert (indices[1, 2, 3, counts[1, 2, 3]:] == -1).all()
    assert numpy.array_equal(dsv4_kernels.block_mask_of(counts, indices), mask)


@pytest.mark.parametrize("n_q, n_kv, b", [(600, 600, 2), (200, 900, 1)])
def test_prefill(n_q, n_kv, b):
    q, k, v = random_states(numpy.random.default_rng(n_q), n_q, n_kv, b=b)
    out, lse = dsv4_kernels.xattn_prefill(q, k, v, 8, threshold=0.6, return_lse=True)
    _, mask = dsv4_kernels.xattn_estimate(q, k, 128, 8, threshold=0.6)
    assert out.shape == q.shape and mask.mean() < 0.8
    for i in range(b):
        want, want_lse = reference.attention(rows(q[i:]), rows(k[i:]), rows(v[i:]), mask[i])
        assert numpy.allclose(rows(out[i:]), want, 1e-4, 1e-5)
        assert numpy.allclose(lse[:, i * n_q:(i + 1) * n_q], want_lse, 1e-4, 1e-5)


def test_prefill_dense_and_scale():
    q, k, v = random_states(numpy.random.default_rng(1), 300, 300)
    want, _ = reference.attention(rows(q), rows(k), rows(v), scale=0.1)
    for how in ({"threshold": 1.0}, {"dense": True}, {"min_length": 301}, {"dense_tail": 300}):
        out = dsv4_kernels.xattn_prefill(q, k, v, 16, softmax_scale=0.1, **{"threshold": 0.0, **how})
        assert numpy.allclose(rows(out), want, 1e-4, 1e-5)
    assert not numpy.allclose(rows(dsv4_kernels.xattn_prefill(q, k, v, 16, threshold=0.0, softmax_scale=0.1)), want,
                              1e-2)


class Sparse:
    """A call of block_sparse_attn_func with two sequences."""

    def __init__(self, lengths=((300, 300), (150, 406)), heads=4, kinds=(1, 1, 1, 1)):
        rng = numpy.random.default_rng(len(kinds))
        total_q, total_k = (sum(n[i] for n in lengths) for i in range(2))
        self.lengths, self.kinds = lengths, numpy.array(kinds, numpy.int32)
        self.q = rng.standard_normal((total_q, heads, 16)).astype(numpy.float32)
        self.k, self.v = (rng.standard_normal((total_k, 2, 16)).astype(numpy.float32) for _ in range(2))
        self.cu_q, self.cu_k = (numpy.concatenate([[0], numpy.cumsum([n[i] for n in lengths])]).astype(numpy.int32)
                                for i in range(2))
        self.most = [max(n[i] for n in lengths) for i in range(2)]
        shape = (len(lengths), sum(kind > 0 for kind in kinds), *(-(-n // 128) for n in self.most))
        self.mask = rng.random(shape) < 0.5
        self.streaming = numpy.tile(numpy.array([1, 2], numpy.int32), heads)

    def run(self, **changes):
        arguments = dict(q=self.q, k=self.k, v=self.v, cu_seqlens_q=self.cu_q, cu_seqlens_k=self.cu_k,
                         head_mask_type=self.kinds, streaming_info=self.streaming, base_blockmask=self.mask,
                         max_seqlen_q_=self.most[0], max_seqlen_k_=self.most[1], p_dropout=0.0)
        return dsv4_kernels.block_sparse_attn_func(**{**arguments, **changes})

    def check(self, causal):
        out, lse, probabilities = self.run(is_causal=causal, return_attn_probs=True)
        assert probabilities is None
        for i, (n_q, n_kv) in enumerate(self.lengths):
            q, k = slice(self.cu_q[i], self.cu_q[i + 1]), slice(self.cu_k[i], self.cu_k[i + 1])
            masks, sparse = numpy.ones((len(self.kinds), *self.mask.shape[2:]), bool), 0
            for head, kind in enumerate(self.kinds):
                if kind > 0:
                    masks[head], sparse = self.mask[i, sparse], sparse + 1
                elif kind < 0:
                    row, column = numpy.indices(masks[head].shape)
                    diagonal = row + (n_kv - n_q) // 128
                    masks[head] = (column < 1) | ((column <= diagonal) & (column >= diagonal - 1))
            want, want_lse = reference.attention(*(x.astype(float) for x in (self.q[q], self.k[k], self.v[k])), masks,
                                                 causal)
            assert numpy.allclose(out[q], want, 1e-4, 1e-5)
            assert numpy.allclose(lse[:, q], want_lse, 1e-4, 1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_block_sparse(causal):
    Sparse().check(causal)
    Sparse(kinds=(1, 0, 1, 0)).check(causal)


def test_block_sparse_streaming_heads():
    Sparse(kinds=(-1, 0, 1, -1)).check(True)
    with pytest.raises(NotImplementedError, match="streaming heads"):
        Sparse(kinds=(-1, 0, 1, -1)).run()


def test_refusals():
    q, k, v = random_states(numpy.random.default_rng(1), 64, 64)
    estimate, prefill = dsv4_kernels.xattn_estimate, dsv4_kernels.xattn_prefill
    for error, call in [
            (NotImplementedError, lambda: estimate(q, k, 128, 8, softmax=False)),
            (NotImplementedError, lambda: estimate(q, k, 128, 8, select_mode="slash")),
            (NotImplementedError, lambda: estimate(q, k, 128, 8, kdb=2)),
            (ValueError, lambda: estimate(q, k, 32, 8)),
            (ValueError, lambda: estimate(q, k, 128, 6)),
            (ValueError, lambda: estimate(q, k[:, :1, :, :8], 128, 8)),
            (ValueError, lambda: estimate(q[0], k, 128, 8)),
            (ValueError, lambda: estimate(q, k, 128, 8, threshold=numpy.ones(3, numpy.float32))),
            (ValueError, lambda: dsv4_kernels.flat_group_gemm_fuse_reshape(q[:, :, :63], k, 8, 0, 8)),
            (ValueError, lambda: dsv4_kernels.flat_group_gemm_fuse_reshape(q, k[..., :8], 8, 0, 8)),
            (ValueError, lambda: dsv4_kernels.softmax_fuse_block_sum(q, 24, 24, 0, 0, 64, 1.0)),
            (ValueError, lambda: prefill(q, k, v[:, :, :9], 8)),
            (ValueError, lambda: prefill(q, k, v, 8, norm=0)),
            (ValueError, lambda: estimate(q, k, 128, 8, norm=-1)),
            (ValueError, lambda: prefill(q, k, v, 8, implementation="fastest")),
            (NotImplementedError, lambda: Sparse().run(p_dropout=0.1)),
            (NotImplementedError, lambda: Sparse().run(exact_streaming=True)),
            (ValueError, lambda: Sparse().run(head_mask_type=numpy.ones(3, numpy.int32))),
            (ValueError, lambda: Sparse().run(base_blockmask=None)),
            (ValueError, lambda: Sparse(lengths=((300, 301),)).run(is_causal=True))]:
        with pytest.raises(error) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_block_mass_is_attention():
    q, k, v = random_states(numpy.random.default_rng(1), 300, 300)
    mass = xattn_mass.block_mass(rows(q), rows(k))
    logits = numpy.where(numpy.tri(300, dtype=bool), rows(q)[:, 3] @ rows(k)[:, 1].T * 32**-0.5, -numpy.inf)
    p = numpy.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    assert numpy.allclose(mass[3, 1, 0], p[128:256, :128].sum()) and mass[3, 0, 1] == 0
    assert numpy.allclose(mass.sum(-1), [[128, 128, 44]] * 4)


def test_curves_predict_the_selection():
    q, k, _ = random_states(numpy.random.default_rng(7), 1500, 1500)
    mass = xattn_mass.block_mass(rows(q), rows(k))
    sums, _ = dsv4_kernels.xattn_estimate(q, k, 128, 8)
    for head, curve in enumerate(xattn_mass.curves([(xattn_mass.critical_thresholds(sums[0]), mass)])):
        for threshold in (0.0, 0.3, 0.777, 0.95, 1.0):
            _, mask = dsv4_kernels.xattn_estimate(q, k, 128, 8, threshold=threshold)
            density, recall = curve.at(threshold)
            assert mask[0, head].sum() == round(density * 78)
            assert numpy.isclose((mass[head] * mask[0, head]).sum() / mass[head].sum(), recall)
        threshold = curve.threshold_for(0.9)
        assert curve.at(threshold)[1] >= 0.9 > curve.at(max(threshold - 0.05, 0))[1]


def dump(path, lengths_seed, n, layers=2):
    rng = numpy.random.default_rng(lengths_seed)
    tensors = {}
    for layer in range(layers):
        q, k, _ = random_states(rng, n, n, sharpness=2 + 2 * layer)
        tensors[f"layers.{layer}.q"], tensors[f"layers.{layer}.k"] = (
            numpy.ascontiguousarray(x[0].swapaxes(0, 1)) for x in (q, k))
    _safetensors.write(path, tensors)
    return str(path)


def test_calibration(tmp_path):
    dumps = [dump(tmp_path / "a.safetensors", 1, 1000), dump(tmp_path / "b.safetensors", 2, 600)]
    out, report = tmp_path / "thresholds.json", tmp_path / "report"
    assert xattn_calibrate.main([*dumps, "--out", str(out), "--stride", "8", "--error", "0.1", "--report",
                                 str(report)]) == 0
    thresholds = dsv4_kernels.thresholds_of(out)
    assert thresholds.stride == 8 and len(thresholds.layers) == 2 and len(thresholds.layers[1]) == 4
    for layer in range(2):  # every head holds what was wished, in the library's own selection
        lost = numpy.zeros(4)
        for path in dumps:
            q, k = (_safetensors.Dump(path)[f"layers.{layer}.{x}"] for x in "qk")
            how = thresholds.arguments(layer)
            _, mask = dsv4_kernels.xattn_estimate(q.swapaxes(0, 1)[None], k.swapaxes(0, 1)[None], 128, how["stride"],
                                                  threshold=how["threshold"])
            lost += (xattn_mass.block_mass(q, k) * ~mask[0]).sum((1, 2))
        assert (lost / 1600 <= 0.1).all()
    assert {p.name for p in report.iterdir()} == {"report.md", "density_by_layer.svg", "recall_by_density.svg",
                                                  "density_by_length.svg"}

    assert xattn_calibrate.main([*dumps, "--out", str(out), "--density", "0.7", "--dense-layers", "0"]) == 0
    thresholds, data = dsv4_kernels.thresholds_of(out), json.loads(out.read_text())
    assert thresholds.arguments(0)["dense"] and not thresholds.arguments(1)["dense"]
    assert 0.8 < data["density"] <= 0.851  # one layer of two is dense
    q, k, v = random_states(numpy.random.default_rng(1), 300, 300)
    assert dsv4_kernels.xattn_prefill(q, k, v, **thresholds.arguments(1)).shape == q.shape


def test_calibration_refusals(tmp_path, capsys):
    (tmp_path / "x").write_bytes(b"no dump")
    assert xattn_calibrate.main([str(tmp_path / "x"), "--out", str(tmp_path / "y"), "--error", "0.1"]) == 1
    assert "no safetensors file" in capsys.readouterr().err
    for text in ("[]", "{}", '{"format": "dsv4 xattn thresholds 1", "stride": 8, "block": 128, "layers": [[2.0]]}',
                 '{"format": "dsv4 xattn thresholds 1", "stride": 7, "block": 128, "layers": []}'):
        (tmp_path / "y").write_text(text)
        with pytest.raises(ValueError):
            dsv4_kernels.thresholds_of(tmp_path / "y")
