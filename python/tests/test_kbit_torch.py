"""k-bit products on torch tensors of the CPU: bf16, torch.compile in one graph, and modules in transformers models.
Skipped where torch (or transformers) is not installed: tools/check_python.sh --torch installs them."""

import importlib
import pathlib
import sys

import dsv4_kernels
import numpy
import pytest
from dsv4_kernels import quantize_weight

torch = pytest.importorskip("torch", reason="torch is not installed")
FORMATS = ["k2-bnf", "k3-e4m3", "k4-e2m1", "k5-nf"]


def close(got, x, values):
    x, values = x.double(), values.double()
    want, size = x @ values.T, x.abs() @ values.abs().T
    step = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 0}[got.dtype]
    bound = 2.0**-23 * (x.shape[-1] + 16)**.5 * size + 1.01 * step * want.abs() + 2.0**-24 * (step > 0)
    return bool(((got.double() - want).abs() <= bound).all())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("format", FORMATS)
def test_linear(format, dtype):
    torch.manual_seed(len(format) + len(dtype))
    weight = quantize_weight(torch.randn(100, 160).to(getattr(torch, dtype)), format)
    args = (weight.data, weight.scale, weight.codebook, weight.bits, 160, 100)
    for rows in (1, 5, 67):
        x = torch.randn(rows, 160).to(getattr(torch, dtype))
        out = dsv4_kernels.kbit_linear(x, *args)
        assert out.dtype == x.dtype and close(out, x, weight.dequantize())
        into = torch.empty(rows, 100)
        assert dsv4_kernels.kbit_linear(x, *args, into) is into and close(into, x, weight.dequantize())
    a = torch.randn(3, 160).to(getattr(torch, dtype))
    workspace = dsv4_kernels.kbit_linear_workspace(3, 160, 100, a.dtype, "cpu")
    assert workspace.numel() == 0
    assert torch.equal(dsv4_kernels.kbit_linear(a, *args, workspace=workspace), dsv4_kernels.kbit_linear(a, *args))


def test_quantize_is_that_of_numpy():
    x = torch.randn(64, 96)
    ours, theirs = dsv4_kernels.quantize_kbit(x, 3), dsv4_kernels.quantize_kbit(x.numpy(), 3)
    assert all(numpy.array_equal(a.numpy(), b) for a, b in zip(ours, theirs))
    assert dsv4_kernels.dequantize_kbit(*ours, 3, x.numel()).dtype == torch.float16
    book = dsv4_kernels.create_normal_float_codebook(3, "cpu")
    assert torch.equal(book, ours[2])


def one_graph(function, *args):
    """What function gives when it is compiled into one graph, twice."""
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    compiled(*args)
    return compiled(*args)


@torch.no_grad()
def test_one_graph_of_products():
    linear = dsv4_kernels.KbitLinear(quantize_weight(torch.randn(64, 96), "k3-e4m3"), torch.randn(64))
    parts = [quantize_weight(torch.randn(4, *shape) * .2, "k4-nf") for shape in ((32, 64), (32, 64), (64, 32))]
    moe = dsv4_kernels.KbitMoE(*parts, activation="gelu")
    ids, weights = torch.randint(0, 4, (7, 2)), torch.rand(7, 2)

    def block(x):
        return moe(linear(x), ids, weights) + 1

    x = torch.randn(7, 96)
    assert torch.equal(one_graph(block, x), block(x))
    w = linear.kbit.weight()
    call = lambda a: dsv4_kernels.kbit_linear(a, w.data, w.scale, w.codebook, 3, 96, 64)
    assert torch.equal(one_graph(call, x), call(x))
    torch.library.opcheck(torch.ops.dsv4.kbit_linear, (x, w.data, w.scale, w.codebook, [4, 0, 3, 1, 64, 96], 1.0),
                          test_utils=("test_schema", "test_faketensor"))


@torch.no_grad()
def test_one_graph_of_experts():
    """Stacks, lists of formats that differ, tiles, another dtype, exact numerics."""
    torch.manual_seed(5)
    stack = quantize_weight(torch.randn(3, 128, 96), "k3-nf")
    tiled, offsets = stack.repacked("tiled"), torch.tensor([0, 2, 2, 7], dtype=torch.int32)
    mixed = [quantize_weight(torch.randn(128, 96), format) for format in ("k2-bnf", "k5-nf", "k4-e2m1")]
    ones = [1.0] * 3

    def block(x):
        wide = torch.empty(7, 128)
        rows = dsv4_kernels.kbit_expert_linear(x, stack.data, stack.scale, stack.codebook, offsets, 3, 96, 128, 3, 5, wide,
                                               scale2=ones, numerics="exact")
        tiles = dsv4_kernels.kbit_grouped_gemm(x, tiled.data, tiled.scale, tiled.codebook, offsets, 96, 128, 3, 3, 5)
        listed = dsv4_kernels.kbit_expert_linear(x, mixed, None, None, offsets, None, 96, 128, 3, None)
        return rows * 2, tiles + 1, listed

    x = torch.randn(7, 96).bfloat16()
    assert all(torch.equal(a, b) for a, b in zip(one_graph(block, x), block(x)))
    gate, up = ([quantize_weight(torch.randn(32, 96) * .2, format) for format in ("k2", "k5-nf", "k3-bnf")] for _ in range(2))
    down = quantize_weight(torch.randn(3, 96, 32) * .2, "k4-nf")
    ids, weights = torch.randint(0, 3, (7, 2), dtype=torch.int32), torch.rand(7, 2)
    moe = lambda a: dsv4_kernels.kbit_moe(a, gate, up, down, ids, weights, limit=1.0, numerics="exact", out=torch.empty(7, 96))
    assert one_graph(moe, x).dtype == torch.float32 and torch.equal(one_graph(moe, x), moe(x))


@torch.no_grad()
def test_one_graph_of_conversions():
    torch.manual_seed(6)

    def block(w, x, scales):
        packed, absmax, book = dsv4_kernels.quantize_kbit(w, 3)
        values = dsv4_kernels.dequantize_kbit(packed, absmax, book, 3, w.numel(), torch.float32)
        tiles = dsv4_kernels.repack_kbit(packed, absmax, 96, 128, 3)
        more = dsv4_kernels.dequantize_kbit_tiled(*tiles, book, 3, 96, 128, torch.float32)
        out = dsv4_kernels.kbit_gemm_prod(x, *tiles, book, 96, 128, 3)
        few = dsv4_kernels.kbit_scalar_gemv(x[:4], packed, absmax, book, 96, 128, 3)
        tiled = dsv4_kernels.kbit_scalar_gemv_tiled(x[:4], *tiles, book, 96, 128, 3)
        there = dsv4_kernels.tile_scales(scales)
        return values, more, out, few, tiled, dsv4_kernels.untile_scales(there, *scales.shape), \
            dsv4_kernels.create_bnf_codebook(3, w.device) + 1

    args = torch.randn(128, 96), torch.randn(9, 96), torch.randint(0, 256, (130, 6), dtype=torch.uint8)
    want = block(*args)
    assert all(torch.equal(a, b) for a, b in zip(one_graph(block, *args), want))
    assert torch.equal(want[0].view(128, 96), want[1]) and torch.equal(want[2][:4], want[3]) and torch.equal(want[3], want[4])
    assert torch.equal(want[5], args[2])


@torch.no_grad()
def test_operators_keep_their_schemas():
    """Fakes have the shapes and dtypes of the operators, which change what they say and nothing else."""
    from dsv4_kernels import torch_ops
    ops, check = torch.ops.dsv4, lambda op, *args: torch.library.opcheck(op, args, test_utils=("test_schema", "test_faketensor"))
    w, x = quantize_weight(torch.randn(128, 96), "k3-nf"), torch.randn(5, 96).bfloat16()
    stack = quantize_weight(torch.randn(2, 128, 96), "k3-nf")
    down, offsets = quantize_weight(torch.randn(2, 96, 128), "k4-nf"), torch.tensor([0, 1, 5], dtype=torch.int32)
    numbers, tiles = [4, 0, 3, 0, 128, 96], w.repacked("tiled")
    check(ops.kbit_linear, x, w.data, w.scale, w.codebook, numbers, 1.0, "linear", True, None, torch.float32)
    check(ops.kbit_expert_linear, x, *torch_ops._flat([stack]), offsets, 128, "expert_linear", False, None, torch.float16)
    check(ops.kbit_expert_linear, x, *torch_ops._flat([[w, w]]), offsets, 128, "expert_linear", False, None, torch.float16)
    ids, weights = torch.tensor([[0, 1]] * 5, dtype=torch.int32), torch.rand(5, 2)
    check(ops.kbit_moe, x, *torch_ops._flat([stack, [w, w], down]), ids, weights, 0, 0.0, False, None, torch.float32)
    check(ops.kbit_codebook, "nf", 4, x)
    check(ops.quantize_kbit, torch.randn(128, 96), w.codebook, 3, True, torch.rand(96), 1.0, torch.empty_like(w.data),
          torch.empty_like(w.scale))
    check(ops.dequantize_kbit, w.data, w.scale, w.codebook, numbers, 1.0, torch.empty(128, 96))
    check(ops.repack_kbit, w.data, w.scale, w.codebook, numbers, 1.0, 1, torch.empty_like(tiles.data),
          torch.empty_like(tiles.scale))
    check(ops.repack_scales, w.scale, torch.empty(1, 1, 512, dtype=torch.uint8), False)


@torch.no_grad()
def test_workspaces_of_experts():
    stack, offsets = quantize_weight(torch.randn(2, 128, 96), "k3-nf"), torch.tensor([0, 1, 5], dtype=torch.int32)
    x, down = torch.randn(5, 96), quantize_weight(torch.randn(2, 96, 128), "k4-nf")
    call = (x, stack.data, stack.scale, stack.codebook, offsets, 3, 96, 128, 2, 4)
    ids, weights = torch.tensor([[0, 1]] * 5, dtype=torch.int32), torch.rand(5, 2)
    moe = (x, stack, stack, down, ids, weights)
    assert dsv4_kernels.kbit_expert_linear_workspace(*call).shape == (0,)  # a CPU takes none
    assert dsv4_kernels.kbit_moe_workspace(*moe).shape == (0,)
    with pytest.raises(ValueError, match="expert_weights"):
        dsv4_kernels.kbit_moe_workspace(*moe[:-1], weights[:4])
    with pytest.raises(ValueError, match="offsets"):
        dsv4_kernels.kbit_expert_linear_workspace(*call[:4], offsets[:2], *call[5:])


def test_scale_bytes_of_torch_are_those_of_numpy():
    v = torch.cat([torch.rand(1000) * 40, torch.tensor([0.0, -1.0, 31.9, 40.0, 2.0**-20])])
    byte = dsv4_kernels.encode_absmax_e4m4(v)
    assert byte.dtype == torch.uint8 and numpy.array_equal(byte.numpy(), dsv4_kernels.encode_absmax_e4m4(v.numpy()))
    values = dsv4_kernels.decode_absmax_e4m4(byte)
    assert values.dtype == torch.float32 and numpy.array_equal(values.numpy(), dsv4_kernels.decode_absmax_e4m4(byte.numpy()))


@torch.no_grad()
def test_stages_of_xattention():
    torch.manual_seed(3)
    q, k = torch.randn(1, 4, 96, 32), torch.randn(1, 2, 128, 32)

    def sums(q, k):
        scores = dsv4_kernels.flat_group_gemm_fuse_reshape(q, k, 8, 4, 16)
        return dsv4_kernels.softmax_fuse_block_sum(scores, 4, 4, 4, 16, 16, 0.03)

    assert numpy.allclose(sums(q, k).numpy(), sums(q.numpy(), k.numpy()), 1e-4, 1e-5)
    low = sums(q.bfloat16(), k.bfloat16())
    assert low.dtype == torch.bfloat16 and torch.allclose(low.float(), sums(q, k), 0.05, 0.02)


@torch.no_grad()
def test_one_graph_of_attention():
    q, k, v = torch.randn(1, 4, 300, 32), torch.randn(1, 2, 300, 32), torch.randn(1, 2, 300, 32)

    def prefill(q, k, v):
        return dsv4_kernels.xattn_prefill(q, k, v, 16, threshold=.9) * 2

    assert torch.equal(one_graph(prefill, q, k, v), prefill(q, k, v))
    estimate = lambda q, k: dsv4_kernels.xattn_estimate(q, k, 128, 16)
    assert all(torch.equal(a, b) for a, b in zip(one_graph(estimate, q, k), estimate(q, k)))
    cache, indices = torch.randn(4, 8, 1, 64), torch.randint(-1, 32, (2, 1, 9), dtype=torch.int32)
    queries = torch.randn(2, 1, 3, 64)

    def decode(queries, cache, indices):
        return dsv4_kernels.sparse_mla(queries, cache, indices, 0.125, d_v=64)[0] + 1

    assert torch.equal(one_graph(decode, queries, cache, indices), decode(queries, cache, indices))
    kv, chosen = torch.randn(40, 1, 576).bfloat16(), torch.randint(0, 40, (5, 1, 16), dtype=torch.int32)
    sparse = lambda q: dsv4_kernels.flash_mla_sparse_fwd(q, kv, chosen, 0.1)[0]
    wide = torch.randn(5, 4, 576).bfloat16()
    assert torch.equal(one_graph(sparse, wide), sparse(wide))
    pages, wide = torch.zeros(2, 64, 1, 584, dtype=torch.uint8), torch.randn(2, 1, 4, 512).bfloat16()
    listed, meta = torch.randint(0, 128, (2, 1, 20), dtype=torch.int32), dsv4_kernels.get_mla_metadata()[0]

    def step(q):
        return dsv4_kernels.flash_mla_with_kvcache(q, pages, None, None, 512, meta, is_fp8_kvcache=True,
                                                   indices=listed)[1]

    assert torch.equal(one_graph(step, wide), step(wide))


@torch.no_grad()
def test_modules_keep_codebooks_when_they_change_dtype():
    module = dsv4_kernels.KbitLinear(quantize_weight(torch.randn(16, 32), "k5-nf"), torch.randn(16))
    x, want = torch.randn(2, 32), module(torch.randn(2, 32)).dtype
    assert want == torch.float32
    half = module.to(torch.bfloat16)
    assert half.kbit.codebook.dtype == torch.float32 and half(x.bfloat16()).dtype == torch.bfloat16
    other = dsv4_kernels.KbitLinear(quantize_weight(torch.randn(16, 32), "k5-nf"), torch.zeros(16).bfloat16())
    other.load_state_dict(half.state_dict())
    assert torch.equal(other(x.bfloat16()), half(x.bfloat16()))


def test_example_generates():
    pytest.importorskip("transformers", reason="transformers is not installed")
    sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples"))
    example = importlib.import_module("kbit_transformers")
    for name in example.MODELS:
        report = example.run(name, tokens=4)
        assert report["tokens"].shape[1] == 4 and report["kbit_linear"] > 0
        assert (report["kbit_moe"] > 0) == (name == "qwen_moe")
        # Random models have logits near zero; five bits keep their direction.
        assert report["cosine"] > .98
