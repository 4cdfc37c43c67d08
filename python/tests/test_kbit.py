"""bitsandbytes' k-bit interface and kbit_moe without a GPU or torch: signatures, the format to the bit, and products
against float64, on NumPy arrays."""

import inspect
import zlib

import dsv4_kernels
import kbit_reference as reference
import numpy
import pytest
from dsv4_kernels import KbitWeight, create_codebook, quantize_weight, stack_of

LINEAR = ["A", "B_packed", "B_absmax", "codebook"]
GROUPED = ["A_concat", "B_packed_all", "B_absmax_all", "codebook", "expert_offsets"]
SIGNATURES = {
    "create_normal_float_codebook": ["k", "device"],
    "create_bnf_codebook": ["k", "device"],
    "encode_absmax_e4m4": ["absmax", "bias"],
    "decode_absmax_e4m4": ["encoded", "bias"],
    "quantize_kbit": ["A", "k", "codebook", "absmax_format"],
    "dequantize_kbit": ["packed", "absmax", "codebook", "k", "n", "dtype", "out"],
    "repack_kbit": ["packed_flat", "absmax_flat", "K_dim", "N", "k"],
    "dequantize_kbit_tiled": ["packed", "absmax", "codebook", "k", "K_dim", "N", "dtype", "out"],
    "kbit_linear": LINEAR + ["k", "K_dim", "N", "out", "workspace"],
    "kbit_linear_workspace": ["M", "K_dim", "N", "dtype", "device"],
    "kbit_expert_linear": GROUPED + ["k", "K_dim", "N", "num_experts", "max_M", "out", "workspace"],
    "kbit_gemm_prod": LINEAR + ["K_dim", "N", "k", "k_chunks"],
    "kbit_scalar_gemv": LINEAR + ["K_dim", "N", "k"],
    "kbit_scalar_gemv_tiled": LINEAR + ["K_dim", "N", "k"],
    "kbit_grouped_gemm": GROUPED + ["K_dim", "N", "k", "num_experts", "max_M"],
}
USER = {2: [-.9, -.1, .3, 1.2], 3: [-1, -.4, -.1, 0, .2, .3, .7, .8]}


def random_of(*seed):
    return numpy.random.default_rng(zlib.crc32(repr(seed).encode()))


def codebook_of(name, k):
    if name != "user":
        return create_codebook(name, k)
    values = USER.get(k) or sorted(numpy.random.default_rng(k).uniform(-.7, 1.3, 2**k))
    return numpy.array(values, numpy.float32)


def normal(rng, *shape, dtype=numpy.float32):
    return rng.standard_normal(shape).astype(dtype)


def close(got, x, w, dtype=None):
    """x, w float64. f32 sums of k products walk by at most k roundings; then one rounding to the output's dtype."""
    want, size = x @ w.T, numpy.abs(x) @ numpy.abs(w.T)
    step = {"float16": 2.0**-11, "float32": 0, "bfloat16": 2.0**-8}[dtype or str(got.dtype)]
    bound = 2.0**-23 * numpy.sqrt(x.shape[-1] + 16) * size + 1.01 * step * numpy.abs(want) + 2.0**-24 * (step > 0)
    return bool((numpy.abs(numpy.asarray(got, float) - want) <= bound).all())


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature_is_the_reference(name):
    parameters = inspect.signature(getattr(dsv4_kernels, name)).parameters.values()
    assert [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY] == SIGNATURES[name]


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_format_to_the_bit(k):
    book = dsv4_kernels.create_normal_float_codebook(k)
    assert numpy.array_equal(book, reference.nf(k))
    rng = random_of(k)
    x = normal(rng, 70, 96) * numpy.float32(10.0)**rng.uniform(-4, 0.5, (70, 1)).astype(numpy.float32)
    x[3, :32] = 0
    packed, absmax, returned = dsv4_kernels.quantize_kbit(x, k)
    blocks = 70 * 3
    codes, scales = reference.quantize(x.reshape(-1, 32), k, book)
    assert packed.shape == ((blocks + 1) * k,) and absmax.shape == (blocks + 1,) and absmax[-1] == 0
    assert numpy.array_equal(packed[:blocks * k].reshape(-1, k), reference.planes_of(codes, k))
    assert numpy.array_equal(absmax[:blocks], scales) and numpy.array_equal(returned, book)
    want = reference.kbit_values(packed[None, :blocks * k], absmax[None, :blocks], book, k)[0]
    out = dsv4_kernels.dequantize_kbit(packed, absmax, book, k, x.size, "float32")
    assert numpy.array_equal(out, want.astype(numpy.float32))
    exact = numpy.abs(x.reshape(-1, 32)).max(1)  # f32 scales
    out = dsv4_kernels.dequantize_kbit(packed, exact, book, k, x.size, "float32")
    assert numpy.array_equal(out.reshape(-1, 32), book[codes] * exact[:, None])
    tail = dsv4_kernels.quantize_kbit(x.reshape(-1)[:45], k)  # the last block is filled with zeros
    assert dsv4_kernels.dequantize_kbit(*tail, k, 45).shape == (64,)
    assert numpy.array_equal(tail[0][:k], packed[:k])


def test_scale_bytes():
    """Every byte decodes to the reference's value and back; values between follow the reference, wrapping beyond 32 too."""
    every = numpy.arange(256, dtype=numpy.uint8)
    values = dsv4_kernels.decode_absmax_e4m4(every)
    assert values.dtype == numpy.float32 and numpy.array_equal(values, reference.decode_e4m4(every).astype(numpy.float32))
    assert numpy.array_equal(dsv4_kernels.encode_absmax_e4m4(values), every)
    rng = random_of("scale bytes")
    halves = (values[1:] + values[:-1]) / 2  # ties
    v = numpy.concatenate([halves, -halves[:3], [40, 63.9, 100], numpy.exp2(rng.uniform(-18, 5, 2000))]).astype(numpy.float32)
    byte = dsv4_kernels.encode_absmax_e4m4(v.reshape(1, -1))
    assert byte.dtype == numpy.uint8 and numpy.array_equal(byte[0], reference.encode_e4m4(v.astype(float)))
    for value, byte in ((1.0, 0xb0), (.1, 0x7a), (.0005, 0x08), (31.9, 0xff), (40, 0xf4), (0, 0)):
        assert dsv4_kernels.encode_absmax_e4m4(numpy.array([value], numpy.float32))[0] == byte
    shifted = dsv4_kernels.encode_absmax_e4m4(values * 16, bias=7)
    assert numpy.array_equal(shifted, every) and numpy.array_equal(dsv4_kernels.decode_absmax_e4m4(every, 7), values * 16)


def test_golden_values():
    codes = numpy.arange(32)[None] % 32
    assert [f"{int(w) & 0xffffffff:08X}" for w in reference.planes_of(codes, 5)[0]] == [
        "AAAAAAAA", "CCCCCCCC", "F0F0F0F0", "FF00FF00", "FFFF0000"]
    for value, byte in ((1.0, 0xb0), (.5, 0xa0), (.75, 0xa8), (.1, 0x7a), (.0005, 0x08), (31.9, 0xff), (0, 0)):
        x = numpy.full((1, 32), value, numpy.float32)
        if value < 31.5:
            assert dsv4_kernels.quantize_kbit(x, 4)[1][0] == byte
        assert reference.encode_e4m4(numpy.array([value]))[0] == byte
    # The reference lets scales of 32 and more wrap; here they are refused, with what to do.
    with pytest.raises(ValueError, match="tensor_scale of 2 or more"):
        dsv4_kernels.quantize_kbit(numpy.full((1, 32), 40, numpy.float32), 4)
    large = quantize_weight(numpy.full((1, 32), 40, numpy.float32), "k4-nf")
    assert abs(large.dequantize() / 40 - 1).max() < .04


@pytest.mark.parametrize("k", [2, 3, 4, 5])
@pytest.mark.parametrize("book", ["nf", "bnf", "e4m3", "user"])
def test_linear_of_every_layout(k, book):
    rng, codebook = random_of(k, book), codebook_of(book, k)
    for n, k_in, rows in ((128, 64, 5), (256, 96, 1), (128, 1056, 17), (128, 32, 66)):
        weight = quantize_weight(normal(rng, n, k_in), f"k{k}", codebook=codebook)
        values = reference.kbit_values(weight.data, weight.scale, codebook, k, weight.scale2)
        assert numpy.array_equal(weight.dequantize(), values.astype(numpy.float32))
        words, scales = reference.tiled(weight.data, weight.scale, k)
        flat = dsv4_kernels.repack_kbit(weight.data.reshape(-1), weight.scale.reshape(-1), k_in, n, k)
        assert numpy.array_equal(flat[0], words.reshape(-1)) and numpy.array_equal(flat[1], scales.reshape(-1))
        image = weight.repacked("image")
        back = image.repacked("rows")
        assert numpy.array_equal(back.data, weight.data) and numpy.array_equal(back.scale, weight.scale)
        for dtype in (numpy.float32, numpy.float16):
            x, call = normal(rng, rows, k_in, dtype=dtype), (codebook, k, k_in, n)
            out = dsv4_kernels.kbit_linear(x, weight.data, weight.scale, *call)
            assert out.dtype == dtype and close(out, x.astype(float), values)
            for packed in ((words, scales), flat, (image.data, None)):
                assert numpy.array_equal(dsv4_kernels.kbit_linear(x, *packed, *call), out)
            tiles = dsv4_kernels.kbit_gemm_prod(x, *flat, codebook, k_in, n, k)
            assert numpy.array_equal(tiles, out)
            into = numpy.empty((rows, n), numpy.float32)
            assert dsv4_kernels.kbit_linear(x, *flat, *call, into) is into
            assert close(into, x.astype(float), values)
            if rows <= 4:
                few = dsv4_kernels.kbit_scalar_gemv(x, weight.data, weight.scale, codebook, k_in, n, k)
                tiled = dsv4_kernels.kbit_scalar_gemv_tiled(x, *flat, codebook, k_in, n, k)
                assert numpy.array_equal(few, out) and numpy.array_equal(tiled, out)
            read = dsv4_kernels.dequantize_kbit_tiled(*flat, codebook, k, k_in, n)  # f16
            assert read.shape == (n, k_in) and numpy.array_equal(read, values.astype(numpy.float32).astype(numpy.float16))


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_linear_of_any_shape(k):
    """Rows of any number, ragged; odd N; scale2; leading axes of A; where the reference's split over k loses work."""
    rng, book = random_of("shape", k), create_codebook("e4m3", k)
    for n, k_in, rows in ((1, 32, 1), (7, 160, 3), (513, 96, 2), (33, 2080, 130), (2048, 2048, 16), (130, 4096, 4)):
        weight = quantize_weight(normal(rng, n, k_in) * 3, f"k{k}")
        values = reference.kbit_values(weight.data, weight.scale, book, k, weight.scale2)
        x = normal(rng, rows, k_in, dtype=numpy.float16)
        out = dsv4_kernels.kbit_linear(x, weight.data, weight.scale, book, k, k_in, n, scale2=weight.scale2)
        assert close(out, x.astype(float), values)
    x = normal(rng, 2, 3, 96)
    weight = quantize_weight(normal(rng, 10, 96), f"k{k}")
    out = dsv4_kernels.kbit_linear(x, weight.data, weight.scale, book, k, 96, 10)
    assert out.shape == (2, 3, 10)
    assert dsv4_kernels.kbit_linear(x[:0], weight.data, weight.scale, book, k, 96, 10).shape == (0, 3, 10)


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float16])
def test_very_many_rows(dtype):
    """More than 65,536 of them, dense and of one expert."""
    rng, rows = random_of("rows", dtype), 70_000
    weight, values = any_weight(rng, "k3-bnf", 24, 96)
    x = normal(rng, rows, 96, dtype=dtype)
    out = dsv4_kernels.kbit_linear(x, weight.data, weight.scale, weight.codebook, 3, 96, 24, scale2=weight.scale2)
    assert close(out, x.astype(float), values)
    stack, offsets = quantize_weight(normal(rng, 3, 24, 96), "k4-nf"), numpy.array([0, 65_600, 65_600, rows], numpy.int32)
    out = dsv4_kernels.kbit_expert_linear(x, stack.data, stack.scale, stack.codebook, offsets, 4, 96, 24, 3, None,
                                          scale2=stack.scale2)
    for e, values in enumerate(stack.dequantize().astype(float)):
        part = slice(offsets[e], offsets[e + 1])
        assert close(out[part], x[part].astype(float), values)


def test_moe_of_a_long_prompt_with_many_experts():
    """8,192 tokens, 16 of 512 experts each; tokens at the ends and between against float64."""
    rng = random_of("long")
    stacks, x, _, _ = moe_case(rng, 512, 32, 32, 8192, 1)
    ids = numpy.argsort(rng.random((8192, 512)), 1)[:, :16].astype(numpy.int32)
    weights = rng.uniform(.05, 1, (8192, 16)).astype(numpy.float32)
    out = dsv4_kernels.kbit_moe(x, *stacks, ids, weights)
    values, some = [s.dequantize().astype(float) for s in stacks], numpy.r_[0:20, 4090:4100, 8172:8192]
    want = reference.moe(x[some].astype(float), *values, ids[some], weights[some].astype(float), "silu")
    assert numpy.abs(out[some] - want).max() <= 2e-5 * numpy.abs(want).max()
    order = rng.permutation(8192)
    assert numpy.array_equal(dsv4_kernels.kbit_moe(x[order], *stacks, ids[order], weights[order]), out[order])


def fp4_weight(rng, format, n, k):
    pairs, group = rng.integers(0, 256, (n, k // 2), numpy.uint8), 32 if format == "mxfp4" else 16
    if format == "mxfp4":
        scale = rng.integers(120, 130, (n, k // group), numpy.uint8)
        scales, scale2 = numpy.exp2(scale.astype(float) - 127), 1.0
    else:
        scale, scale2 = rng.integers(40, 120, (n, k // group), numpy.uint8), 0.25
        scales = reference.decode_e4m3(scale)
    values = reference.e2m1_values(pairs) * numpy.repeat(scales, group, 1) * scale2
    return KbitWeight(format, n, k, pairs, scale, scale2=scale2), values


def fp8_weight(rng, n, k):
    bytes = rng.integers(0, 120, (n, k), numpy.uint8) | rng.integers(0, 2, (n, k), numpy.uint8) << 7
    scale = rng.integers(110, 118, (-(-n // 128), -(-k // 128)), numpy.uint8)
    scales = numpy.repeat(numpy.repeat(numpy.exp2(scale.astype(float) - 127), 128, 0)[:n], 128, 1)[:, :k]
    return KbitWeight("fp8", n, k, bytes, scale), reference.decode_e4m3(bytes) * scales


def any_weight(rng, format, n, k):
    if format in ("mxfp4", "nvfp4"):
        return fp4_weight(rng, format, n, k)
    if format == "fp8":
        return fp8_weight(rng, n, k)
    weight = quantize_weight(normal(rng, n, k), format)
    return weight, reference.kbit_values(weight.data, weight.scale, weight.codebook, weight.bits, weight.scale2)


@pytest.mark.parametrize("n, groups", [(1, 1), (128, 4), (300, 130)])
def test_scale_tiles(n, groups):
    """By the axes of the order: 32 rows, 4 times 32 rows, 4 groups."""
    scales = random_of("tiles").integers(0, 256, (n, groups), numpy.uint8)
    tiles = dsv4_kernels.tile_scales(scales)
    padded = numpy.zeros((-(-n // 128) * 128, -(-groups // 4) * 4), numpy.uint8)
    padded[:n, :groups] = scales
    want = padded.reshape(-(-n // 128), 4, 32, -(-groups // 4), 4).transpose(0, 3, 2, 1, 4).reshape(tiles.shape)
    assert numpy.array_equal(tiles, want)
    assert numpy.array_equal(dsv4_kernels.untile_scales(tiles, n, groups), scales)
    with pytest.raises(ValueError, match="tiles: want"):
        dsv4_kernels.untile_scales(tiles, n + 128, groups)


@pytest.mark.parametrize("format", ["mxfp4", "nvfp4", "fp8"])
def test_linear_of_other_formats(format):
    from dsv4_kernels.kbit import _multiply
    rng = random_of(format)
    for n, k, rows in ((5, 64, 1), (130, 160, 9), (200, 1056, 3)):
        weight, values = any_weight(rng, format, n, k)
        assert numpy.array_equal(weight.dequantize(), values.astype(numpy.float32))
        x = normal(rng, rows, k)
        out = _multiply("linear", x, weight, None)
        assert close(out, x.astype(float), values)
        if format != "fp8":
            assert numpy.array_equal(_multiply("linear", x, weight.repacked("image"), None), out)


ROUTINGS = ([0, 1, 0, 37, 4], [3, 0, 0, 0, 0], [0, 0, 0, 0, 50], [0] * 5, [1] * 5, [0, 0, 2, 0, 700])


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_experts(k):
    """Experts with 0, 1 and many rows, all rows at one, an odd number of blocks; grouped_gemm's surplus tiles."""
    rng, book, (n, k_in) = random_of("experts", k), create_codebook("bnf", k), (128, 160)
    stack = quantize_weight(normal(rng, 5, n, k_in), f"k{k}-bnf")
    tiled, values = stack.repacked("tiled"), stack.dequantize().astype(float)
    for counts in ROUTINGS:
        offsets = numpy.concatenate([[0], numpy.cumsum(counts)]).astype(numpy.int32)
        x = normal(rng, offsets[-1], k_in, dtype=numpy.float16)
        out = dsv4_kernels.kbit_expert_linear(x, stack.data, stack.scale, book, offsets, k, k_in, n, 5, 999,
                                              scale2=stack.scale2)
        for e in range(5):
            rows = slice(offsets[e], offsets[e + 1])
            assert close(out[rows], x[rows].astype(float), values[e])
        if stack.scale2 == [1.0] * 5:
            for packed in ((tiled.data, tiled.scale), (tiled.data.reshape(-1), tiled.scale.reshape(-1))):
                grouped = dsv4_kernels.kbit_grouped_gemm(x, *packed, book, offsets, k_in, n, k, 5, 999)
                assert numpy.array_equal(grouped, out)


def test_experts_that_differ():
    """A list of weights in formats and k of their own."""
    rng, formats = random_of("mixed"), ["k2", "mxfp4", "k5-nf", "fp8", "nvfp4", "k3-bnf"]
    weights, values = zip(*(any_weight(rng, format, 24, 96) for format in formats))
    offsets = numpy.array([0, 2, 2, 9, 10, 14, 20], numpy.int32)
    x = normal(rng, 20, 96)
    out = dsv4_kernels.kbit_expert_linear(x, list(weights), None, None, offsets, None, 96, 24, 6, None)
    for e in range(6):
        rows = slice(offsets[e], offsets[e + 1])
        assert close(out[rows], x[rows].astype(float), values[e])


def moe_case(rng, experts, d, i, t, top_k, formats=("k3", "k3", "k4-nf")):
    shapes = ((i, d), (i, d), (d, i))
    stacks = [stack_of([any_weight(rng, format, *shape)[0] for _ in range(experts)])
              for format, shape in zip(formats, shapes)]
    ids = rng.integers(0, experts, (t, top_k), numpy.int32)
    return stacks, normal(rng, t, d) * .5, ids, rng.uniform(.05, 1, (t, top_k)).astype(numpy.float32)


@pytest.mark.parametrize("name, limit", [("silu", None), ("silu", .5), ("gelu", None), ("gelu_tanh", .3)])
@pytest.mark.parametrize("t, top_k, experts", [(1, 1, 1), (1, 10, 33), (9, 2, 4), (70, 6, 8), (0, 2, 3)])
def test_moe(name, limit, t, top_k, experts):
    rng = random_of("moe", name, t, experts)
    stacks, x, ids, weights = moe_case(rng, experts, 96, 64, t, top_k)
    out = dsv4_kernels.kbit_moe(x, *stacks, ids, weights, activation=name, limit=limit)
    values = [s.dequantize().astype(float) for s in stacks]
    want = reference.moe(x.astype(float), *values, ids, weights.astype(float), name, limit)
    size = numpy.abs(want).max() if t else 0
    assert numpy.abs(out - want).max(initial=0) <= 2e-5 * size
    half = dsv4_kernels.kbit_moe(x, *stacks, ids, weights, activation=name, limit=limit,
                                 out=numpy.empty(x.shape, numpy.float16))
    assert numpy.array_equal(half, out.astype(numpy.float16))


def test_moe_with_all_tokens_at_one_expert():
    rng = random_of("one")
    stacks, x, ids, weights = moe_case(rng, 7, 64, 32, 40, 1, ("mxfp4", "mxfp4", "k2-bnf"))
    ids[:] = 5
    out = dsv4_kernels.kbit_moe(x, *stacks, ids, weights)
    values = [s.dequantize().astype(float) for s in stacks]
    want = reference.moe(x.astype(float), *values, ids, weights.astype(float), "silu")
    assert numpy.abs(out - want).max() <= 2e-5 * numpy.abs(want).max()


def test_bits_do_not_change():
    """Over repeats, under a permutation of the batch, and for a row alone."""
    rng = random_of("bits")
    stacks, x, ids, weights = moe_case(rng, 6, 64, 96, 50, 3)
    ids = numpy.stack([rng.permutation(6)[:3] for _ in range(50)]).astype(numpy.int32)  # equal ids have an order
    order, call = rng.permutation(50), lambda rows: dsv4_kernels.kbit_moe(x[rows], *stacks, ids[rows], weights[rows])
    first = call(slice(None))
    for _ in range(20):
        assert numpy.array_equal(call(slice(None)), first)
    assert numpy.array_equal(call(order), first[order])
    assert numpy.array_equal(dsv4_kernels.kbit_moe(x, *stacks, ids[:, ::-1].copy(), weights[:, ::-1].copy()), first)
    weight = quantize_weight(normal(rng, 100, 2048), "k3")
    a, args = normal(rng, 50, 2048, dtype=numpy.float16), (weight.data, weight.scale, weight.codebook, 3, 2048, 100)
    dense = dsv4_kernels.kbit_linear(a, *args)
    for _ in range(20):
        assert numpy.array_equal(dsv4_kernels.kbit_linear(a, *args), dense)
    assert numpy.array_equal(dsv4_kernels.kbit_linear(a[order], *args), dense[order])
    assert all(numpy.array_equal(dsv4_kernels.kbit_linear(a[i:i + 1], *args)[0], dense[i]) for i in range(50))


def test_search_and_importance():
    rng = random_of("search")
    w = normal(rng, 64, 256)
    importance = rng.uniform(0, 1, 256).astype(numpy.float32)**4
    def error(**options):
        got = quantize_weight(w, "k2-nf", **options).dequantize()
        return ((got - w)**2).sum(), ((got - w)**2 * importance).sum()
    plain, searched, weighted = error(search=False), error(), error(importance=importance)
    assert searched[0] < .8 * plain[0] and weighted[1] < .98 * searched[1]


def test_errors():
    rng = random_of("errors")
    weight = quantize_weight(normal(rng, 128, 64), "k3")
    x, args = normal(rng, 5, 64), (weight.data, weight.scale, weight.codebook)
    with pytest.raises(ValueError, match="want 1 to 4"):
        dsv4_kernels.kbit_scalar_gemv(x, *args, 64, 128, 3)
    with pytest.raises(ValueError, match="A has 5 rows"):
        tiled = weight.repacked("tiled")
        dsv4_kernels.kbit_scalar_gemv_tiled(x, tiled.data, tiled.scale, weight.codebook, 64, 128, 3)
    with pytest.raises(ValueError, match="A: want|x: want"):
        dsv4_kernels.kbit_linear(x[:, :32], *args, 3, 64, 128)
    with pytest.raises(ValueError, match="a k-bit weight in tiles"):
        dsv4_kernels.kbit_gemm_prod(x, *args, 64, 128, 3)
    with pytest.raises(ValueError, match="packed: want 384"):
        dsv4_kernels.kbit_gemm_prod(x, weight.data.reshape(-1)[:300], weight.scale.reshape(-1), weight.codebook, 64, 64, 3)
    with pytest.raises(ValueError, match="offsets"):
        dsv4_kernels.kbit_expert_linear(x, [weight], None, None, numpy.array([0, 4], numpy.int32), 3, 64, 128, 1, 5)
    with pytest.raises(ValueError, match="activation='relu'"):
        dsv4_kernels.kbit_moe(x, weight, weight, weight, None, None, activation="relu")
    with pytest.raises(ValueError, match="33 columns"):
        quantize_weight(normal(rng, 2, 33))
    with pytest.raises(ValueError, match="no codebook 'e2m1' of 3 bits"):
        create_codebook("e2m1", 3)
