"""The k-bit functions on CUDA tensors against the same functions on the CPU (to the bit where nothing is summed) and
against float64: every K, codebook, layout and format, ragged shapes, experts with 0, 1 and many rows, graphs."""

import numpy
import pytest
from test_kbit import ROUTINGS, any_weight, codebook_of, moe_case, random_of

torch = pytest.importorskip("torch", reason="no torch: the GPU tests were skipped")
if not torch.cuda.is_available():
    pytest.skip("no GPU: the GPU tests were skipped", allow_module_level=True)

import dsv4_kernels  # noqa: E402
from dsv4_kernels import KbitWeight, quantize_weight  # noqa: E402
from dsv4_kernels.kbit import _multiply  # noqa: E402

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
STEP = {torch.float32: 0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def gpu(value):
    if isinstance(value, KbitWeight):
        fields = {f: gpu(getattr(value, f)) for f in ("data", "scale", "codebook")}
        return KbitWeight(value.format, value.n, value.k, fields["data"], fields["scale"], fields["codebook"],
                          value.bits, value.scale2, value.layout, value.e4m3)
    return None if value is None else torch.as_tensor(value).cuda()


def equal(got, want):
    return torch.equal(got.cpu(), torch.as_tensor(want))


def close(out, x, values, operand=None):
    """x [m, k] on the GPU, values float64 [n, k]. Operands of tensor cores are rounded to the type of x, some twice."""
    w, x = gpu(values).double(), x.double()
    want, size = x @ w.T, x.abs() @ w.abs().T
    bound = 2.0**-20 * size + 1.01 * STEP[out.dtype] * want.abs() + 2.0**-24
    if operand is not None:
        bound = bound + (2.0**-8 if operand == torch.bfloat16 else 2.0**-10 if operand == torch.float16 else 0) * size
    return bool(((out.double() - want).abs() <= bound).all())


@pytest.mark.parametrize("k", [2, 3, 4, 5])
@pytest.mark.parametrize("book", ["nf", "bnf", "e4m3", "user"])
def test_conversions_have_the_bits_of_the_cpu(k, book):
    rng, codebook = random_of("gpu", k, book), codebook_of(book, k)
    for n, k_in in ((128, 64), (256, 96), (128, 1056)):
        w = rng.standard_normal((n, k_in)).astype(numpy.float32)
        importance = rng.uniform(0, 1, k_in).astype(numpy.float32)
        for options in ({}, {"search": False}, {"importance": importance}):
            want = quantize_weight(w, f"k{k}", codebook=codebook, **options)
            moved = {name: gpu(v) if name == "importance" else v for name, v in options.items()}
            got = quantize_weight(gpu(w), f"k{k}", codebook=gpu(codebook), **moved)
            assert got.scale2 == want.scale2 and equal(got.data, want.data) and equal(got.scale, want.scale)
        for dtype in ("float32", "float16"):
            assert equal(got.dequantize(dtype), want.dequantize(dtype))
        for layout in ("tiled", "image"):
            there, host = got.repacked(layout), want.repacked(layout)
            assert equal(there.data, host.data) and (layout == "image" or equal(there.scale, host.scale))
            back = there.repacked("rows")
            assert equal(back.data, want.data) and equal(back.scale, want.scale)
            assert equal(there.dequantize(), want.dequantize())
        assert equal(got.repacked("tiled").repacked("image").data, want.repacked("image").data)
    packed = dsv4_kernels.quantize_kbit(gpu(w).reshape(-1)[:77], k)
    host = dsv4_kernels.quantize_kbit(w.reshape(-1)[:77], k)
    assert all(equal(a, b) for a, b in zip(packed, host))
    assert equal(dsv4_kernels.dequantize_kbit(*packed, k, 77), dsv4_kernels.dequantize_kbit(*host, k, 77))


def test_quantize_names_what_it_refuses():
    x = torch.ones(4, 64, device="cuda")
    x[2, 40] = 50
    with pytest.raises(ValueError, match="row 0, block 5"):  # flattened
        dsv4_kernels.quantize_kbit(x, 3)
    x[2, 40] = float("nan")
    with pytest.raises(ValueError, match="NaN or an infinity"):
        quantize_weight(x, "k3")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_linear(k, dtype):
    rng = random_of("gpu linear", k)
    for n, k_in, rows in ((128, 64, 5), (1, 32, 1), (7, 160, 3), (513, 96, 2), (33, 2080, 130), (2048, 2048, 16),
                          (256, 1056, 300)):
        weight, values = any_weight(rng, f"k{k}-bnf", n, k_in)
        weight = gpu(weight)
        x = torch.as_tensor(rng.standard_normal((rows, k_in))).cuda().to(dtype)
        call = (weight.codebook, k, k_in, n)
        out = dsv4_kernels.kbit_linear(x, weight.data, weight.scale, *call, scale2=weight.scale2)
        assert out.dtype == dtype and close(out, x, values, dtype)
        exact = dsv4_kernels.kbit_linear(x, weight.data, weight.scale, *call, scale2=weight.scale2, numerics="exact")
        assert close(exact, x, values)
        layouts = ["image"] if n % 128 else ["image", "tiled"]
        for other in (weight.repacked(layout) for layout in layouts):
            assert torch.equal(dsv4_kernels.kbit_linear(x, other.data, other.scale, *call, scale2=weight.scale2), out)
            if rows > 4 and dtype != torch.float32:  # a named product does not name the conversion
                named = dsv4_kernels.kbit_linear(x, other.data, other.scale, *call, scale2=weight.scale2,
                                                 implementation="cuda_mma")
                assert close(named, x, values, dtype)
        if dtype != torch.float32 and rows >= 256:
            try:
                named = dsv4_kernels.kbit_linear(x, weight.data, weight.scale, *call, scale2=weight.scale2,
                                                 implementation="cublaslt_any")
            except ValueError as refused:
                assert "libcublasLt" in str(refused)  # it is not installed
            else:
                assert close(named, x, values, dtype)


@pytest.mark.parametrize("n, groups", [(1, 1), (128, 4), (300, 130)])
def test_scale_tiles_have_the_bytes_of_the_cpu(n, groups):
    scales = random_of("gpu tiles").integers(0, 256, (n, groups), numpy.uint8)
    tiles = dsv4_kernels.tile_scales(gpu(scales))
    assert equal(tiles, dsv4_kernels.tile_scales(scales))
    assert equal(dsv4_kernels.untile_scales(tiles, n, groups), scales)


@pytest.mark.parametrize("format", ["mxfp4", "nvfp4", "fp8"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_of_other_formats(format, dtype):
    from dsv4_kernels.kbit import _multiply
    rng = random_of("gpu", format)
    for n, k, rows in ((5, 64, 1), (130, 160, 9), (200, 1056, 70)):
        weight, values = any_weight(rng, format, n, k)
        weight, x = gpu(weight), torch.as_tensor(rng.standard_normal((rows, k))).cuda().to(dtype)
        assert close(_multiply("linear", x, weight, None), x, values, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_experts(dtype):
    rng, (n, k_in) = random_of("gpu experts"), (128, 160)
    formats = ("k2-bnf", "k5-nf", "mxfp4", "k3-bnf", "k2-bnf")
    for mixed in (False, True):
        weights, values = zip(*(any_weight(rng, f if mixed else "k3-bnf", n, k_in) for f in formats))
        weights = [gpu(w) for w in weights]
        for counts in ROUTINGS:
            offsets = numpy.concatenate([[0], numpy.cumsum(counts)]).astype(numpy.int32)
            x = torch.as_tensor(rng.standard_normal((offsets[-1], k_in))).cuda().to(dtype)
            out = dsv4_kernels.kbit_expert_linear(x, weights, None, None, gpu(offsets), None, k_in, n, 5, None)
            for e in range(5):
                rows = slice(offsets[e], offsets[e + 1])
                assert close(out[rows], x[rows], values[e], dtype)
            if not mixed and dtype != torch.float32:
                stack = dsv4_kernels.stack_of(weights)
                named = dsv4_kernels.kbit_expert_linear(x, stack.data, stack.scale, stack.codebook, gpu(offsets), 3, k_in,
                                                        n, 5, None, scale2=stack.scale2, implementation="cuda_kbit")
                for e in range(5):
                    rows = slice(offsets[e], offsets[e + 1])
                    assert close(named[rows], x[rows], values[e], dtype)
            if not mixed:
                tiles = [w.repacked("tiled") for w in weights]
                same = dsv4_kernels.kbit_expert_linear(x, tiles, None, None, gpu(offsets), None, k_in, n, 5, None)
                assert torch.equal(same, out)


@pytest.mark.parametrize("name, limit", [("silu", None), ("silu", .5), ("gelu", None), ("gelu_tanh", .3)])
@pytest.mark.parametrize("t, top_k, experts", [(1, 1, 1), (1, 10, 33), (9, 2, 4), (70, 6, 8), (4, 10, 512)])
def test_moe(name, limit, t, top_k, experts):
    rng = random_of("gpu moe", name, t, experts)
    stacks, x, ids, weights = moe_case(rng, experts, 96, 64, t, top_k)
    want = dsv4_kernels.kbit_moe(x, *stacks, ids, weights, activation=name, limit=limit)
    moved, rest = [gpu(s) for s in stacks], dict(activation=name, limit=limit)
    call = lambda **more: dsv4_kernels.kbit_moe(gpu(x), *moved, gpu(ids), gpu(weights), **rest, **more)
    out = call()
    assert numpy.abs(out.cpu().numpy() - want).max() <= 2e-5 * numpy.abs(want).max()
    lists = [[s.expert(i) for i in range(experts)] for s in moved]
    lists[0] = [KbitWeight(**{**w.__dict__, "data": w.data.clone()}) for w in lists[0]]  # anywhere in memory
    other = dsv4_kernels.kbit_moe(gpu(x), *lists, gpu(ids), gpu(weights), **rest)
    assert numpy.abs(other.cpu().numpy() - want).max() <= 2e-5 * numpy.abs(want).max()
    for dtype in (torch.float16, torch.bfloat16):
        half = torch.empty(x.shape, dtype=dtype, device="cuda")
        assert torch.equal(call(out=half), out.to(dtype))
        named, exact = (dsv4_kernels.kbit_moe(gpu(x).to(dtype), *moved, gpu(ids), gpu(weights), **rest, **how,
                                              out=torch.empty(x.shape, device="cuda"))
                        for how in ({"implementation": "cuda_kbit"}, {"numerics": "exact"}))
        assert (named - exact).abs().max() <= (2.0**-5 if dtype == torch.bfloat16 else 2.0**-8) * exact.abs().max()
    with pytest.raises(ValueError, match="cuda_kbit"):
        call(implementation="cuda_kbit", numerics="exact")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("book", ["user", "e4m3"])
@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_products_of_other_codebooks(k, book, dtype):
    """An asymmetric codebook of a user, and e4m3 as a codebook and by its name (for which there are kernels that do not
    read it): dense with few and many rows, and of experts."""
    rng, codebook = random_of("gpu books", k, book), codebook_of(book, k)
    for n, k_in, rows in ((256, 512, 1), (256, 512, 5), (130, 160, 9), (512, 1024, 48)):
        weight = quantize_weight(rng.standard_normal((n, k_in)).astype(numpy.float32), f"k{k}", codebook=codebook)
        values, weight = weight.dequantize().astype(float), gpu(weight)
        x = torch.as_tensor(rng.standard_normal((rows, k_in))).cuda().to(dtype)
        args = (weight.data, weight.scale, weight.codebook, k, k_in, n)
        for named in (False, True) if book == "e4m3" else (False,):
            assert close(dsv4_kernels.kbit_linear(x, *args, scale2=weight.scale2, e4m3=named), x, values, dtype)
    stack = quantize_weight(rng.standard_normal((5, 64, 96)).astype(numpy.float32), f"k{k}", codebook=codebook)
    values, stack = stack.dequantize().astype(float), gpu(stack)
    offsets = numpy.array([0, 1, 1, 9, 30, 31], numpy.int32)
    x = torch.as_tensor(rng.standard_normal((31, 96))).cuda().to(dtype)
    out = dsv4_kernels.kbit_expert_linear(x, stack.data, stack.scale, stack.codebook, gpu(offsets), k, 96, 64, 5, None,
                                          scale2=stack.scale2)
    for e in range(5):
        rows = slice(offsets[e], offsets[e + 1])
        assert close(out[rows], x[rows], values[e], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_very_many_rows(dtype):
    rng, rows = random_of("gpu rows"), 70_000
    weight, values = any_weight(rng, "k3-bnf", 40, 96)
    weight, x = gpu(weight), torch.randn(rows, 96, device="cuda").to(dtype)
    out = dsv4_kernels.kbit_linear(x, weight.data, weight.scale, weight.codebook, 3, 96, 40, scale2=weight.scale2)
    assert close(out, x, values, dtype)
    stack, offsets = quantize_weight(rng.standard_normal((3, 40, 96)).astype(numpy.float32), "k4-nf"), [0, 65_600, 65_600, rows]
    values, stack = stack.dequantize().astype(float), gpu(stack)
    out = dsv4_kernels.kbit_expert_linear(x, stack.data, stack.scale, stack.codebook,
                                          torch.tensor(offsets, dtype=torch.int32).cuda(), 4, 96, 40, 3, None,
                                          scale2=stack.scale2)
    for e in range(3):
        part = slice(offsets[e], offsets[e + 1])
        assert close(out[part], x[part], values[e], dtype)


def test_moe_of_a_long_prompt_with_many_experts():
    """8,192 tokens, 16 of 512 experts each."""
    rng = random_of("gpu long")
    stacks, x, ids, weights = moe_case(rng, 512, 64, 32, 8192, 1)
    ids = numpy.argsort(rng.random((8192, 512)), 1)[:, :16].astype(numpy.int32)
    weights = rng.uniform(.05, 1, (8192, 16)).astype(numpy.float32)
    want = torch.as_tensor(dsv4_kernels.kbit_moe(x, *stacks, ids, weights))
    args = *map(gpu, stacks), gpu(ids), gpu(weights)
    out = dsv4_kernels.kbit_moe(gpu(x), *args).cpu()
    assert (out - want).abs().max() <= 2e-5 * want.abs().max()
    for dtype, bound in ((torch.bfloat16, 2.0**-5), (torch.float16, 2.0**-8)):
        for implementation in (None, "cuda_kbit"):
            out = dsv4_kernels.kbit_moe(gpu(x).to(dtype), *args, implementation=implementation).cpu()
            assert (out.float() - want).abs().max() <= bound * want.abs().max()


hopper = pytest.mark.skipif(torch.cuda.get_device_capability()[0] != 9, reason="images are read on Hopper")


@hopper
@pytest.mark.parametrize("format", ["k2-e4m3", "k3-e4m3", "k4-e4m3", "mxfp4", "nvfp4"])
def test_images_are_read_as_they_are(format):
    """Rows of bf16 are not rounded; more than 16 of them take the converted rows of the weight."""
    rng = random_of("gpu images", format)
    for n, k_in, rows in ((133, 96, 1), (64, 2080, 3), (300, 8192, 5), (1000, 1056, 16)):
        weight, values = any_weight(rng, format, n, k_in)
        image = gpu(weight).repacked("image")
        x = torch.as_tensor(rng.standard_normal((rows, k_in))).cuda().to(torch.bfloat16)
        out = _multiply("linear", x, image, None, implementation="sm90_image")
        assert close(out, x, values)
        assert torch.equal(_multiply("linear", x, image, None), out)
        assert torch.equal(_multiply("linear", x[:1], image, None), out[:1])
        more = x.repeat(17 // rows + 1, 1)[:17].contiguous()
        assert close(_multiply("linear", more, image, None), more, values, torch.bfloat16)


@hopper
@pytest.mark.parametrize("name, limit", [("silu", None), ("silu", 0.7), ("gelu_tanh", None)])
@pytest.mark.parametrize("t, top_k, experts", [(1, 6, 9), (5, 10, 512), (70, 4, 24)])
def test_moe_of_images(name, limit, t, top_k, experts):
    rng = random_of("gpu moe images", name, t, experts)
    stacks, x, ids, weights = moe_case(rng, experts, 288, 160, t, top_k, ("k3", "k3", "k4"))
    images = [gpu(s).repacked("image") for s in stacks]
    x, rest = gpu(x).to(torch.bfloat16), dict(activation=name, limit=limit)
    call = lambda parts, **how: dsv4_kernels.kbit_moe(x, *parts, gpu(ids), gpu(weights), **rest, **how,
                                                      out=torch.empty(x.shape, device="cuda"))
    exact, out = call(map(gpu, stacks), numerics="exact"), call(images, implementation="sm90_image")
    assert (out - exact).abs().max() <= 2.0**-8 * exact.abs().max()
    assert torch.equal(call(images), out)
    assert (call(images, numerics="exact") - exact).abs().max() <= 2e-5 * exact.abs().max()  # by conversion


@pytest.mark.parametrize("implementation", [None, "cuda_kbit", "cuda"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bits_of_experts_repeat_and_follow_the_batch(dtype, implementation):
    """100 repeats; tokens in another order; a token alone; rows of an expert in another order; one graph for all routings."""
    rng = random_of("gpu expert bits")
    stacks, x, _, weights = moe_case(rng, 24, 256, 128, 40, 6, ("k3", "k3", "k3"))
    ids = gpu(numpy.argsort(rng.random((40, 24)), 1)[:, :6].astype(numpy.int32))
    stacks, x, weights = [gpu(s) for s in stacks], gpu(x).to(dtype), gpu(weights)
    call = lambda rows: dsv4_kernels.kbit_moe(x[rows], *stacks, ids[rows], weights[rows], implementation=implementation)
    everything = slice(None)
    first = call(everything)
    assert all(torch.equal(call(everything), first) for _ in range(100))
    order = torch.randperm(40).cuda()
    assert torch.equal(call(order), first[order])
    alone = [torch.equal(call(slice(i, i + 1))[0], first[i]) for i in range(40)]
    assert all(alone)
    gate, counts = stacks[0], numpy.array([0, 1, 30, 0, 9] + [0] * 19)
    offsets = gpu(numpy.concatenate([[0], numpy.cumsum(counts)]).astype(numpy.int32))
    args = (gate.data, gate.scale, gate.codebook, offsets, 3, 256, 128, 24, None)
    rows = lambda a: dsv4_kernels.kbit_expert_linear(a, *args, scale2=gate.scale2, implementation=implementation)
    first = rows(x)
    assert all(torch.equal(rows(x), first) for _ in range(100))
    order = torch.cat([begin + torch.randperm(count) for begin, count in ((0, 1), (1, 30), (31, 9))]).cuda()
    assert torch.equal(rows(x[order]), first[order])


def test_experts_in_captured_graphs():
    """A graph with the workspace that was asked for multiplies by whatever routing is there when it runs."""
    rng = random_of("gpu expert graph")
    stacks, x, ids, weights = moe_case(rng, 24, 256, 128, 12, 6, ("k3", "k3", "k3"))
    stacks, x, ids, weights = [gpu(s) for s in stacks], gpu(x).bfloat16(), gpu(ids), gpu(weights)
    gate, out, rows = stacks[0], torch.empty_like(x), torch.empty(12, 128, dtype=x.dtype, device="cuda")
    offsets = gpu(numpy.array([0] * 12 + [5] * 12 + [12], numpy.int32))
    moe, args = (x, *stacks, ids, weights), (x, gate.data, gate.scale, gate.codebook, offsets, 3, 256, 128, 24, None, rows)
    own = dsv4_kernels.kbit_moe_workspace(*moe, out=out), dsv4_kernels.kbit_expert_linear_workspace(*args, scale2=gate.scale2)

    def call():
        dsv4_kernels.kbit_moe(*moe, out=out, workspace=own[0])
        dsv4_kernels.kbit_expert_linear(*args, own[1], scale2=gate.scale2)
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    x.copy_(torch.randn_like(x))
    ids.copy_(gpu(rng.integers(0, 24, (12, 6), numpy.int32)))
    offsets.copy_(gpu(numpy.array([0] * 3 + [12] * 22, numpy.int32)))
    graph.replay()
    captured = out.clone(), rows.clone()
    call()
    assert torch.equal(captured[0], out) and torch.equal(captured[1], rows)
    with pytest.raises(ValueError, match="workspace: want"):
        dsv4_kernels.kbit_moe(*moe, out=out, workspace=own[0][:1])


@torch.no_grad()
def test_one_graph_of_the_compiler():
    """Inside torch.compile, conversions, dense products, experts and mixtures have the bits of plain calls."""
    rng = random_of("gpu compile")
    stacks, x, ids, weights = moe_case(rng, 8, 128, 64, 9, 3, ("k3", "k3", "k3"))
    stacks, x, ids, weights = [gpu(s) for s in stacks], gpu(x).half(), gpu(ids), gpu(weights)
    gate, offsets = stacks[0], gpu(numpy.array([0] * 4 + [4] * 4 + [9], numpy.int32))

    def block(x, w):
        packed, absmax, book = dsv4_kernels.quantize_kbit(w, 4)
        tiles = dsv4_kernels.repack_kbit(packed, absmax, 128, 128, 4)
        dense = dsv4_kernels.kbit_linear(x, *tiles, book, 4, 128, 128)
        rows = dsv4_kernels.kbit_expert_linear(dense, gate.data, gate.scale, gate.codebook, offsets, 3, 128, 64, 8, None,
                                               scale2=gate.scale2)
        return rows, dsv4_kernels.kbit_moe(dense, *stacks, ids, weights), dsv4_kernels.dequantize_kbit(packed, absmax, book, 4, 77)

    torch._dynamo.reset()
    compiled, w = torch.compile(block, fullgraph=True, backend="aot_eager"), torch.randn(128, 128, device="cuda")
    compiled(x, w)
    assert all(torch.equal(a, b) for a, b in zip(compiled(x, w), block(x, w)))


def test_bits_repeat_and_graphs_replay():
    rng = random_of("gpu bits")
    weight, _ = any_weight(rng, "k3", 512, 2048)
    weight, x = gpu(weight), torch.randn(7, 2048, device="cuda", dtype=torch.float16)
    tiles, out = weight.repacked("tiled"), torch.empty(7, 512, device="cuda", dtype=torch.float16)
    workspace = dsv4_kernels.kbit_linear_workspace(7, 2048, 512, x.dtype, "cuda")
    call = lambda: dsv4_kernels.kbit_linear(x, tiles.data, tiles.scale, tiles.codebook, 3, 2048, 512, out, workspace,
                                            scale2=weight.scale2)
    first = call().clone()
    assert all(torch.equal(call(), first) for _ in range(100))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    x.copy_(torch.randn_like(x))
    graph.replay()
    captured = out.clone()
    assert not torch.equal(captured, first) and torch.equal(captured, call())
