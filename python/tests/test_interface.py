"""Tests without a GPU or torch: FlashMLA's signatures, every error, and the CPU implementation through
NumPy."""

import inspect

import dsv4_kernels
import numpy
import pytest
import reference

REQUIRED = inspect.Parameter.empty
DECODE = [("q", REQUIRED), ("k_cache", REQUIRED), ("block_table", REQUIRED), ("cache_seqlens", REQUIRED),
          ("head_dim_v", REQUIRED), ("tile_scheduler_metadata", REQUIRED), ("num_splits", None),
          ("softmax_scale", None), ("causal", False), ("is_fp8_kvcache", False), ("indices", None),
          ("attn_sink", None), ("extra_k_cache", None), ("extra_indices_in_kvcache", None), ("topk_length", None),
          ("extra_topk_length", None)]
PREFILL = [("q", REQUIRED), ("kv", REQUIRED), ("indices", REQUIRED), ("sm_scale", REQUIRED), ("d_v", 512),
           ("attn_sink", None), ("topk_length", None)]


@pytest.mark.parametrize("function, want", [(dsv4_kernels.flash_mla_with_kvcache, DECODE),
                                            (dsv4_kernels.flash_mla_sparse_fwd, PREFILL)])
def test_signature_is_the_peers(function, want):
    parameters = inspect.signature(function).parameters.values()
    assert [(p.name, p.default) for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY] == want
    assert all(p.default is not REQUIRED for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)


def test_metadata_accepts_any_arguments():
    meta, rest = dsv4_kernels.get_mla_metadata(1, 2, num_heads_k=3)
    assert isinstance(meta, dsv4_kernels.FlashMLASchedMeta) and rest is None and not meta.have_initialized


def strided(array, shape, strides):
    return numpy.lib.stride_tricks.as_strided(array, shape, strides)


class Decode:
    """Arguments of a small decode call on the host, in float32."""

    def __init__(self, d=512, b=3, s_q=2, h=5, n=7, extra=False, sink=True):
        rng = numpy.random.default_rng(d + b + n)
        self.rng, self.d = rng, d
        wide = numpy.full((b, s_q, h, d + 8), numpy.nan, numpy.float32)
        self.q = wide[..., 8:]
        self.q[:] = rng.standard_normal(self.q.shape)
        self.cache, self.indices = self.make_list(b, s_q, n, 5, 4)
        self.extra = self.make_list(b, s_q, n + 2, 3, 9) if extra else None
        self.sink = rng.standard_normal(h).astype(numpy.float32) if sink else None
        self.lengths = self.extra_lengths = None
        self.meta = dsv4_kernels.get_mla_metadata()[0]

    def make_list(self, b, s_q, n, num_pages, page):
        indices = self.rng.integers(-1, num_pages * page, (b, s_q, n), numpy.int32)
        cache = reference.Cache(self.rng, self.d, num_pages, page, indices, extra_stride=64)
        return cache, indices

    def arguments(self):
        view = strided(self.cache.pages, *self.cache.shape_and_strides())
        more = {}
        if self.extra:
            more = {"extra_k_cache": strided(self.extra[0].pages, *self.extra[0].shape_and_strides()),
                    "extra_indices_in_kvcache": self.extra[1], "extra_topk_length": self.extra_lengths}
        return dict(q=self.q, k_cache=view, block_table=None, cache_seqlens=None, head_dim_v=512,
                    tile_scheduler_metadata=self.meta, is_fp8_kvcache=True, indices=self.indices,
                    attn_sink=self.sink, topk_length=self.lengths, numerics="exact", **more)

    def check(self):
        out, lse = dsv4_kernels.flash_mla_with_kvcache(**self.arguments())
        lists = [(self.cache, self.indices, self.lengths)]
        if self.extra:
            lists.append((*self.extra, self.extra_lengths))
        keys, valid = [], []
        for cache, ids, lengths in lists:
            ids, ok = reference.select(ids, lengths, len(cache.rows))
            keys.append(cache.rows[ids])
            valid.append(ok)
        sink = None if self.sink is None else self.sink.astype(numpy.float64)
        want, want_lse, _ = reference.attention(
            numpy, self.q.astype(numpy.float64), numpy.concatenate(keys, 2).astype(numpy.float64),
            numpy.concatenate(valid, 2), self.d**-0.5, 512, sink)
        assert out.dtype == numpy.float32 and lse.dtype == numpy.float32
        assert reference.close(out.astype(float), want, 1e-6, 1e-5, 1e-9) is None
        assert reference.close(lse.astype(float), want_lse.swapaxes(1, 2), 1e-5, 1e-5, 1e-9) is None


@pytest.mark.parametrize("d", [512, 576])
@pytest.mark.parametrize("extra", [False, True])
def test_decode_on_the_host(d, extra):
    Decode(d, extra=extra).check()


def test_one_query_each():
    Decode(s_q=1, sink=False).check()


@pytest.mark.parametrize("d", [512, 576])
def test_indices_past_lengths_are_ignored(d):
    call = Decode(d, extra=True)
    call.lengths = numpy.array([0, 3, 7], numpy.int32)
    call.extra_lengths = numpy.array([0, 9, 2], numpy.int32)
    for ids, lengths in ((call.indices, call.lengths), (call.extra[1], call.extra_lengths)):
        for i, length in enumerate(lengths):
            ids[i, :, length:] = numpy.iinfo(numpy.int32).max
    call.check()


def test_corners():
    call = Decode(sink=True)
    call.sink[:3] = numpy.inf, -numpy.inf, numpy.inf
    call.indices[1] = -1
    call.check()


def test_prefill_on_the_host():
    rng = numpy.random.default_rng(5)
    kv = numpy.full((40, 1, 600), numpy.nan, numpy.float32)[..., :576]
    kv[:] = rng.standard_normal(kv.shape)
    q = rng.standard_normal((6, 3, 576)).astype(numpy.float32)
    ids = rng.integers(-2, 40, (6, 1, 9), numpy.int32)
    out, max_logits, lse = dsv4_kernels.flash_mla_sparse_fwd(q, kv, ids, 0.04, numerics="exact")
    read, valid = reference.select(ids, None, 40)
    want = reference.attention(numpy, q[:, None].astype(float), kv[:, 0].astype(float)[read], valid, 0.04, 512)
    assert out.shape == (6, 3, 512) and lse.shape == max_logits.shape == (6, 3)
    assert reference.close(out.astype(float), want[0][:, 0], 1e-6, 1e-5, 1e-9) is None
    assert reference.close(lse.astype(float), want[1][:, 0], 1e-5, 1e-5, 1e-9) is None
    assert reference.close(max_logits.astype(float), want[2][:, 0], 1e-5, 1e-5, 1e-9) is None


@pytest.mark.parametrize("d", [512, 576])
def test_entries_are_written(d):
    """Codes are the nearest e4m3 numbers for the scale of the form, by search in the table; all else stays."""
    rng, n, page = numpy.random.default_rng(d), 9, 4
    nope, group, width = reference.NOPE[d], reference.GROUP[d], reference.ROW_BYTES[d]
    x = (rng.standard_normal((n, d)) * numpy.exp2(rng.integers(-15, 4, (n, 1)))).astype(numpy.float32)
    x[2, :group] = 0
    rows = numpy.array([0, 11, -1, 5, 6, 3, -7, 9, 8], numpy.int32)
    stride = -(-page * width // 576) * 576
    pages = numpy.full((3, stride), 0x7f, numpy.uint8)
    cache = numpy.lib.stride_tricks.as_strided(pages, (3, page, 1, width), (stride, width, width, 1))
    assert dsv4_kernels.kv_insert(x, rows, cache) is cache
    finite = reference.e4m3_values()[numpy.abs(reference.e4m3_values()) <= 448]
    touched = numpy.zeros(pages.shape, bool)
    for row, values in zip(rows, x):
        if row < 0:
            continue
        at, entry = divmod(row, page)
        begin = entry * (576 if d == 512 else width)
        scale_at = page * 576 + entry * 8 if d == 512 else begin + nope
        scale_bytes, rope_at = (8, begin + nope) if d == 512 else (16, begin + nope + 16)
        groups = values[:nope].reshape(-1, group)
        most = numpy.abs(groups).max(1).astype(float)
        least = numpy.maximum(most, 1e-4) / 448 if d == 512 else numpy.maximum(most / 448, 1e-4)
        scales = numpy.exp2(numpy.ceil(numpy.log2(least)))
        stored = pages[at, scale_at:scale_at + scale_bytes]
        want = (numpy.append(numpy.log2(scales) + 127, 0).astype(numpy.uint8) if d == 512
                else scales.astype(numpy.float32).view(numpy.uint8))
        assert numpy.array_equal(stored, want)
        codes = reference.e4m3_values()[pages[at, begin:begin + nope]].reshape(-1, group)
        distance = numpy.abs(groups / scales[:, None] - codes)
        assert (distance <= numpy.abs((groups / scales[:, None])[..., None] - finite).min(-1) + 1e-12).all()
        rope = pages[at, rope_at:rope_at + 128]
        assert numpy.array_equal(rope, reference.bf16_bits(values[nope:]).view(numpy.uint8))
        for first, count in ((begin, nope), (scale_at, scale_bytes), (rope_at, 128)):
            touched[at, first:first + count] = True
    assert (pages[~touched] == 0x7f).all()
    with pytest.raises(ValueError, match="row 12 of a pool of 12"):
        dsv4_kernels.kv_insert(x, rows + 1, cache)
    with pytest.raises(ValueError, match="x: want"):
        dsv4_kernels.kv_insert(x[:, :-1], rows, cache)


def test_partials_combine_to_the_full_result():
    call = Decode(n=8, sink=False)
    arguments = dict(q=call.q, k_cache=call.arguments()["k_cache"], scale=0.05, numerics="exact")
    whole, lse, _ = dsv4_kernels.sparse_mla(indices=call.indices, **arguments)
    parts = [dsv4_kernels.sparse_mla(indices=numpy.ascontiguousarray(ids), normalized=False, **arguments)
             for ids in (call.indices[:, :, :3], call.indices[:, :, 3:])]
    top = numpy.maximum(parts[0][2], parts[1][2])
    sums = sum(part[0] * numpy.exp(part[2] - top).swapaxes(1, 2)[..., None] for part in parts)
    assert reference.close(sums * numpy.exp(top - lse).swapaxes(1, 2)[..., None].astype(float), whole.astype(float),
                           1e-6, 1e-5, 1e-9) is None


def refusal(error=ValueError, **changes):
    call = Decode(extra=True)
    with pytest.raises(error) as caught:
        dsv4_kernels.flash_mla_with_kvcache(**{**call.arguments(), **changes})
    line = str(caught.value)
    assert line and "\n" not in line
    return line


def test_refusals():
    call = Decode(extra=True)
    view = call.arguments()["k_cache"]
    assert "dense attention" in refusal(NotImplementedError, indices=None)
    assert "tile_scheduler_metadata" in refusal(tile_scheduler_metadata=None)
    assert "num_splits" in refusal(num_splits=1)
    assert "causal=True" in refusal(causal=True)
    assert "is_fp8_kvcache=False" in refusal(is_fp8_kvcache=False)
    assert "head_dim_v=256" in refusal(head_dim_v=256)
    assert "584 bytes" in refusal(k_cache=view[..., :500])
    assert "extra_indices_in_kvcache" in refusal(extra_indices_in_kvcache=None)
    assert "without extra_k_cache" in refusal(extra_k_cache=None)
    assert "indices: want [b=3, s_q=2, n=7] I32, got [3, 2, 7] I64" in refusal(indices=call.indices.astype(numpy.int64))
    assert "indices: want [b=3, s_q=2, n] I32, got [2, 2, 7] I32" in refusal(indices=call.indices[:2])
    assert "strided last axis" in refusal(indices=numpy.repeat(call.indices, 2, 2)[..., ::2])
    assert "side by side" in refusal(k_cache=view[:, ::2])
    assert "attn_sink: want [h=5] F32, got [4] F32" in refusal(attn_sink=numpy.zeros(4, numpy.float32))
    assert "topk_length: want [b=3] I32, got [3] F64" in refusal(topk_length=numpy.zeros(3))
    assert "q: want [b=3, s_q=2, h=5, d=512] F32|BF16, got [3, 2, 5, 512] F64" in refusal(q=call.q.astype(numpy.float64))
    assert "scale=-1" in refusal(softmax_scale=-1.0)
    assert "want a tensor, got list" in refusal(attn_sink=[1.0])
    assert "attn_sink: arrays of" in refusal(attn_sink=numpy.zeros(5, numpy.complex64))
    assert "want at most 4 axes, got 5" in refusal(topk_length=numpy.zeros((3, 1, 1, 1, 1), numpy.int32))
    assert "numerics='fast'" in refusal(numerics="fast")
    call.indices[1, 0, 3] = 20
    assert "is row 20 of a pool of 20" in refusal(indices=call.indices)


def test_metadata_rejects_another_shape():
    call = Decode()
    call.check()
    call.check()
    with pytest.raises(ValueError, match="topk=6, but .* topk=7"):
        dsv4_kernels.flash_mla_with_kvcache(**{**call.arguments(), "indices": call.indices[:, :, :6]})
