"""FlashMLA's interface on a GPU against float64 on the same GPU: both entry formats, prefill, both lists, lengths,
corner cases, graphs, streams. Data and tolerances follow that library's own tests (docs/spec/attention-kernels.md
1.8): everything that no index names is NaN, queries and caches have gaps."""

import numpy
import pytest
import reference

torch = pytest.importorskip("torch", reason="no torch: the GPU tests were skipped")
if not torch.cuda.is_available():
    pytest.skip("no GPU: the GPU tests were skipped", allow_module_level=True)

import dsv4_kernels  # noqa: E402

INT_MIN, INT_MAX = numpy.iinfo(numpy.int32).min, numpy.iinfo(numpy.int32).max
OUT, LSE = (1e-3, 2.01 / 128, 5e-6), (1e-6, 8.01 / 65536, 5e-6)
PREFILL_OUT, PREFILL_SUMS = (8e-4, 3.01 / 128, 7e-6), (1e-6, 2.01 / 65536, 5e-6)


PACKED_ROWS = [("sm90_fp8", 512), ("sm90_fp8", 576), ("sm90_fp8_invariant", 512), ("sm90_fp8_invariant", 576),
               ("cuda_mma", 512), ("cuda", 512), ("cuda", 576)]


def skip_where_it_cannot_run(implementation):
    version = torch.cuda.get_device_capability()
    if implementation.startswith("sm90") and version != (9, 0):
        pytest.skip(f"{implementation} is for sm_90, this is sm_{version[0]}{version[1]}")


def gpu(array):
    return torch.from_numpy(array).cuda()


def assert_close(got, want, tolerance):
    wrong = reference.close(got.double().cpu().numpy(), want.cpu().numpy(), *tolerance)
    assert wrong is None, wrong


def gapped(values):
    """A bf16 tensor of these values with NaN between its rows."""
    wide = torch.full((*values.shape[:-1], values.shape[-1] + 64), float("nan"), dtype=torch.bfloat16, device="cuda")
    wide[..., :values.shape[-1]] = values
    return wide[..., :values.shape[-1]]


def random_queries(rng, *shape):
    return gapped(gpu(numpy.clip(rng.standard_normal(shape, numpy.float32), -1, 1)))


def random_sink(rng, h):
    sink = rng.standard_normal(h).astype(numpy.float32)
    sink[::7], sink[3::11] = -numpy.inf, numpy.inf
    return sink


class KvList:
    """A cache, a list of ids into it, and the lengths of the used part of the list."""

    def __init__(self, rng, d, shape, s_k, page, lengths):
        b, s_q, n = shape
        num_pages = b * -(-s_k // page)
        # Each request lists its own tokens, some of them twice, a tenth of the indices -1.
        first = numpy.arange(b)[:, None, None] * (-(-s_k // page) * page)
        ids = (first + rng.integers(0, s_k, shape)).astype(numpy.int32)
        ids[rng.random(shape) < 0.1] = -1
        self.lengths = rng.integers(0, n + 1, b, numpy.int32) if lengths else None
        if lengths:
            self.lengths[:2] = 0, n
        _, valid = reference.select(ids, self.lengths, num_pages * page)
        self.cache = reference.Cache(rng, d, num_pages, page, ids[valid], extra_stride=576 if d == 512 else 656)
        ids[~valid & (ids >= 0)] = INT_MAX  # past the lengths: must not be read
        self.ids, self.valid = ids, valid
        bytes_, (shape, strides) = gpu(self.cache.pages), self.cache.shape_and_strides()
        self.k_cache = bytes_.view(torch.float8_e4m3fn).as_strided(shape, strides)
        wide = numpy.full((b, s_q, n + 5), INT_MAX, numpy.int32)
        wide[..., :n] = ids
        self.indices = gpu(wide)[..., :n]
        self.topk_length = None if self.lengths is None else gpu(self.lengths)
        self.rows = gpu(self.cache.rows)

    def of(self, i):
        """Keys [s_q, n, d] float64 and the mask of the valid ones [s_q, n], of request i."""
        valid = gpu(self.valid[i])
        ids = torch.where(valid, gpu(self.ids[i]).long(), 0)
        return self.rows[ids].double(), valid


class Decode:
    def __init__(self, d, h, b, s_q, first, extra=None, lengths=False, sink=True, seed=0):
        """first, extra: (s_k, n, page)"""
        rng = numpy.random.default_rng([seed, d, h, b, s_q])
        self.q, self.scale = random_queries(rng, b, s_q, h, d), d**-0.55
        self.lists = [KvList(rng, d, (b, s_q, n), s_k, page, lengths)
                      for s_k, n, page in ([first] if extra is None else [first, extra])]
        self.sink = gpu(random_sink(rng, h)) if sink else None

    def run(self, **changes):
        first, more = self.lists[0], {}
        if len(self.lists) > 1:
            more = dict(extra_k_cache=self.lists[1].k_cache, extra_indices_in_kvcache=self.lists[1].indices,
                        extra_topk_length=self.lists[1].topk_length)
        meta, _ = dsv4_kernels.get_mla_metadata()
        arguments = dict(q=self.q, k_cache=first.k_cache, block_table=None, cache_seqlens=None, head_dim_v=512,
                         tile_scheduler_metadata=meta, softmax_scale=self.scale, is_fp8_kvcache=True,
                         indices=first.indices, attn_sink=self.sink, topk_length=first.topk_length, **more)
        return dsv4_kernels.flash_mla_with_kvcache(**{**arguments, **changes})

    def run_with(self, implementation, **changes):
        """out, lse, max_logits of this implementation, whatever the library would choose."""
        first, more = self.lists[0], {}
        if len(self.lists) > 1:
            more = dict(extra_k_cache=self.lists[1].k_cache, extra_indices_in_kvcache=self.lists[1].indices,
                        extra_topk_length=self.lists[1].topk_length)
        arguments = dict(q=self.q, k_cache=first.k_cache, indices=first.indices, scale=self.scale,
                         topk_length=first.topk_length, attn_sink=self.sink, implementation=implementation, **more)
        return dsv4_kernels.sparse_mla(**{**arguments, **changes})

    def want(self):
        """Computed per request: [b, s_q, h, 512], [b, h, s_q]."""
        results = []
        for i in range(self.q.shape[0]):
            keys, valid = zip(*(each.of(i) for each in self.lists))
            results.append(reference.attention(torch, self.q[i].double(), torch.cat(keys, 1), torch.cat(valid, 1),
                                               self.scale, 512, None if self.sink is None else self.sink.double()))
        return torch.stack([r[0] for r in results]), torch.stack([r[1].T for r in results])

    def check(self):
        out, lse = self.run()
        b, s_q, h, _ = self.q.shape
        assert out.shape == (b, s_q, h, 512) and out.dtype == torch.bfloat16 and out.is_cuda
        assert lse.shape == (b, h, s_q) and lse.dtype == torch.float32
        want, want_lse = self.want()
        assert_close(out, want, OUT)
        assert_close(lse, want_lse, LSE)


@pytest.mark.parametrize("first", [(512, 64, 2), (512, 64, 69), (1024, 576, 61), (2046, 2048, 64)])
@pytest.mark.parametrize("h, b, s_q", [(64, 4, 1), (128, 4, 3), (64, 33, 1), (16, 5, 2), (8, 3, 1), (100, 2, 1)])
@pytest.mark.parametrize("d", [512, 576])
def test_decode(d, h, b, s_q, first):
    Decode(d, h, b, s_q, first).check()


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("h, b, s_q", [(64, 4, 1), (128, 3, 2), (32, 20, 1)])
@pytest.mark.parametrize("d", [512, 576])
def test_decode_two_lists(d, h, b, s_q, lengths):
    Decode(d, h, b, s_q, (256, 128, 256), (900, 512, 64), lengths).check()
    Decode(d, h, b, s_q, (256, 128, 1), (900, 1400, 3), lengths, sink=False).check()


@pytest.mark.parametrize("h, b, s_q", [(64, 5, 1), (128, 2, 2), (16, 33, 1)])
@pytest.mark.parametrize("implementation, d", PACKED_ROWS)
def test_decode_with_each_implementation(implementation, d, h, b, s_q):
    skip_where_it_cannot_run(implementation)
    call = Decode(d, h, b, s_q, (256, 128, 256), (2500, 2300, 64), lengths=True)
    out, lse, _ = call.run_with(implementation)
    want, want_lse = call.want()
    assert_close(out, want, OUT)
    assert_close(lse, want_lse, LSE)


@pytest.mark.parametrize("d", [512, 576])
def test_decode_lengths(d):
    Decode(d, 64, 9, 2, (650, 576, 53), lengths=True).check()


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("d", [512, 576])
def test_decode_all_invalid(d, sink):
    call = Decode(d, 64, 3, 2, (512, 64, 61), sink=sink)
    call.lists[0].indices.fill_(-1)
    out, lse = call.run()
    assert torch.equal(out, torch.zeros_like(out)) and bool((lse == float("inf")).all())


def test_cache_dtypes_are_the_same_bytes():
    call = Decode(512, 64, 3, 1, (512, 64, 64))
    want = call.run()[0]
    for dtype in (torch.uint8, torch.int8):
        assert torch.equal(want, call.run(k_cache=call.lists[0].k_cache.view(dtype))[0])


def test_default_scale_and_wide_numerics():
    call = Decode(512, 64, 2, 1, (512, 64, 64))
    call.scale = 512**-0.5
    assert_close(call.run(softmax_scale=None)[0], call.want()[0], OUT)
    out, lse, largest = dsv4_kernels.sparse_mla(call.q.float(), call.lists[0].k_cache, call.lists[0].indices,
                                                call.scale, attn_sink=call.sink, numerics="exact")
    assert out.dtype == torch.float32
    assert_close(out, call.want()[0], (1e-6, 2e-5, 1e-9))
    assert_close(lse, call.want()[1], (1e-5, 1e-5, 1e-9))
    assert bool((largest <= lse + 1e-5).all())


def prefill_with_flash_mla_name(q, kv, ids, sink, lengths):
    return dsv4_kernels.flash_mla_sparse_fwd(q, kv, ids, q.shape[-1]**-0.55, attn_sink=sink, topk_length=lengths)


def prefill_with(implementation):
    """The same through sparse_mla(): one request per query, one page per entry."""
    def run(q, kv, ids, sink, lengths):
        out, lse, max_logits = dsv4_kernels.sparse_mla(
            q[:, None], kv[:, None], ids, q.shape[-1]**-0.55, attn_sink=sink, topk_length=lengths,
            implementation=implementation)
        return out[:, 0], max_logits[:, :, 0], lse[:, :, 0]
    return run


def check_prefill(run, d, h, s_q, lengths, s_kv, topk):
    rng = numpy.random.default_rng([d, h, s_q, s_kv])
    q = random_queries(rng, s_q, h, d)
    kv = gapped(gpu(numpy.clip(rng.standard_normal((s_kv, 1, d), numpy.float32) / 10, -1, 1)))
    ids = rng.integers(0, s_kv, (s_q, 1, topk), numpy.int32)
    for bad in (-1, INT_MIN, INT_MAX, s_kv):
        ids[rng.random(ids.shape) < 0.03] = bad
    if s_q > 3:
        ids[2] = INT_MAX
    sink = random_sink(rng, h)
    length = rng.integers(0, topk + 1, s_q, numpy.int32) if lengths else None
    out, max_logits, lse = run(q, kv, gpu(ids), gpu(sink), None if length is None else gpu(length))
    assert out.shape == (s_q, h, 512) and max_logits.shape == lse.shape == (s_q, h)
    assert out.is_contiguous() and lse.is_contiguous() and max_logits.is_contiguous()
    read, valid = reference.select(ids, length, s_kv)
    parts = [reference.attention(torch, q[i].double(), kv[gpu(read[i, 0]).long(), 0].double(), gpu(valid[i, 0]),
                                 d**-0.55, 512, gpu(sink).double()) for i in range(s_q)]
    want, want_lse, want_largest = (torch.stack(each) for each in zip(*parts))
    assert_close(out, want, PREFILL_OUT)
    assert_close(lse, want_lse, PREFILL_SUMS)
    assert_close(max_logits, want_largest, PREFILL_SUMS)


@pytest.mark.parametrize("s_kv, topk", [(128, 128), (592, 128), (1592, 384), (95, 128), (2100, 2048)])
@pytest.mark.parametrize("h, s_q, lengths", [(64, 1, False), (128, 62, True), (64, 213, True), (20, 7, False)])
@pytest.mark.parametrize("d", [512, 576])
def test_prefill(d, h, s_q, lengths, s_kv, topk):
    check_prefill(prefill_with_flash_mla_name, d, h, s_q, lengths, s_kv, topk)


@pytest.mark.parametrize("h, s_q, lengths", [(128, 62, True), (20, 7, False)])
@pytest.mark.parametrize("d", [512, 576])
@pytest.mark.parametrize("implementation", ["sm90_bf16", "cuda"])
def test_prefill_with_each_implementation(implementation, d, h, s_q, lengths):
    skip_where_it_cannot_run(implementation)
    check_prefill(prefill_with(implementation), d, h, s_q, lengths, 592, 128)


# Lists of more than 1280 entries are split, and cuda_mma needs workspace for the splits.
LONG = dict(d=512, h=64, s_q=1, first=(3000, 2900, 64))


def test_bits_do_not_depend_on_the_batch():
    call = Decode(b=12, **LONG)
    whole = call.run(batch_invariant=True)
    for i in (0, 5, 11):
        alone = call.run(batch_invariant=True, q=call.q[i:i + 1], indices=call.lists[0].indices[i:i + 1])
        assert torch.equal(whole[0][i:i + 1], alone[0]) and torch.equal(whole[1][i:i + 1], alone[1])


@pytest.mark.parametrize("case", [LONG, dict(d=576, h=128, s_q=2, first=(512, 64, 64)),
                                  dict(d=512, h=64, s_q=1, first=(256, 128, 256), extra=(900, 512, 64))])
def test_graph_capture(case):
    """A captured call reads the current contents of its tensors at each replay."""
    call, other = Decode(b=5, **case), Decode(b=5, seed=1, **case)
    wants = [[each.clone() for each in c.run()] for c in (call, other)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = call.run()
    for want, source in ((wants[0], None), (wants[1], other), (wants[1], None)):
        if source is not None:
            call.q.copy_(source.q)
            call.sink.copy_(source.sink)
            for mine, its in zip(call.lists, source.lists):
                mine.indices.copy_(its.indices)
                mine.k_cache.view(torch.uint8).copy_(its.k_cache.view(torch.uint8))
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, want[0]) and torch.equal(lse, want[1])


def test_two_streams():
    """Different calls at the same time, each with its own workspace."""
    calls = [Decode(b=40, seed=seed, **LONG) for seed in range(2)]
    wants = [call.run()[0] for call in calls]
    torch.cuda.synchronize()
    streams, outs = [torch.cuda.Stream() for _ in calls], []
    for _ in range(20):
        for call, stream, want in zip(calls, streams, wants):
            with torch.cuda.stream(stream):
                outs.append((call.run()[0], want))
    torch.cuda.synchronize()
    assert all(torch.equal(got, want) for got, want in outs)


def test_current_stream():
    """Work enqueued on the current stream before the call is complete when the kernel reads."""
    call = Decode(512, 64, 4, 1, (512, 64, 64))
    want, queries = call.run()[0], call.q.clone()
    call.q.fill_(0)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(200_000_000)
        call.q.copy_(queries)
        out = call.run()[0]
    torch.cuda.synchronize()
    assert torch.equal(out, want)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no second GPU")
def test_device_follows_the_tensors():
    """Independent of the current device, which is restored."""
    call = Decode(b=3, **LONG)
    want = call.run()[0]
    first = call.lists[0]
    there = dict(q=call.q.to("cuda:1"), indices=first.indices.to("cuda:1"), attn_sink=call.sink.to("cuda:1"),
                 k_cache=first.k_cache.view(torch.uint8).to("cuda:1"))
    for current in (0, 1):
        with torch.cuda.device(current):
            got = call.run(**there)[0]
            assert got.device == torch.device("cuda:1") and torch.equal(got.cpu(), want.cpu())
            assert torch.equal(call.run()[0], want)
            assert torch.cuda.current_device() == current and torch.zeros(1, device="cuda").get_device() == current


def run_with(call, implementation, allocate, out):
    """The library's own function, which calls allocate(bytes) for its workspace."""
    skip_where_it_cannot_run(implementation)
    stream = torch.cuda.current_stream().cuda_stream
    first = call.lists[0]
    dsv4_kernels._core.sparse_mla(call.q, (first.k_cache, first.indices, None), None, call.sink, call.scale, out, None,
                                  None, True, False, False, implementation, stream, allocate)


def test_workspace_size_is_checked():
    """A workspace that is too small is rejected before anything is enqueued."""
    call = Decode(b=3, **LONG)
    asked = []

    def allocate(size):
        asked.append(size)
        return torch.empty(size - 256 if len(asked) > 1 else size, dtype=torch.uint8, device="cuda")

    out = torch.full((3, 1, 64, 512), float("nan"), dtype=torch.bfloat16, device="cuda")
    run_with(call, "cuda_mma", allocate, out)
    assert len(asked) == 1 and asked[0] > 0
    assert_close(out, call.want()[0], OUT)
    out.fill_(7)
    with pytest.raises(MemoryError, match=f"workspace of {asked[0] - 256} bytes is too small: {asked[0]} are"):
        run_with(call, "cuda_mma", allocate, out)
    assert bool((out == 7).all())


@pytest.mark.parametrize("implementation", ["sm90_fp8", "sm90_fp8_invariant"])
def test_clusters_take_no_workspace(implementation):
    """Partials of a split list stay in the shared memory of a cluster."""
    call = Decode(b=3, **LONG)
    out = torch.full((3, 1, 64, 512), float("nan"), dtype=torch.bfloat16, device="cuda")
    run_with(call, implementation, lambda size: pytest.fail(f"requests {size} bytes"), out)
    assert_close(out, call.want()[0], OUT)


def test_tensors_of_other_libraries():
    """Any DLPack array is read; the results are torch tensors."""
    class Array:
        def __init__(self, tensor):
            self.tensor, self.shape = tensor, tensor.shape

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    call = Decode(512, 64, 2, 1, (512, 64, 64))
    first = call.lists[0]
    want = call.run()[0]
    got = call.run(q=Array(call.q), indices=Array(first.indices), k_cache=Array(first.k_cache.view(torch.uint8)))[0]
    assert isinstance(got, torch.Tensor) and torch.equal(got, want)


def test_refusals():
    call = Decode(512, 64, 2, 1, (512, 64, 64))
    first = call.lists[0]
    for changes, line in (({"q": call.q.half()}, "q: want .* F32.BF16, got .* F16"),
                          ({"indices": first.indices.cpu()}, "indices is on the host, q is on cuda:0"),
                          ({"k_cache": first.k_cache.view(torch.uint8).short()}, "k_cache: want .* U8.*, got .* I16"),
                          ({"attn_sink": call.sink.double()}, "attn_sink: want .h=64. F32, got .* F64")):
        with pytest.raises(ValueError, match=line):
            call.run(**changes)
    with pytest.raises(ValueError, match="no implementation fits .*cuda: not the forced implementation"):
        dsv4_kernels.sparse_mla(call.q, first.k_cache, first.indices, 1.0, implementation="fastest")
