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
