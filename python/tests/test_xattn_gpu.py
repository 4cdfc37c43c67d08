"""XAttention's and Block-Sparse-Attention's interfaces on a GPU through torch, against float64 in NumPy; capture in a
graph; the attention function for transformers in a tiny Llama with random weights."""

import pathlib
import sys

import numpy
import pytest
import xattn_reference as reference

torch = pytest.importorskip("torch", reason="no torch: the GPU tests were skipped")
if not torch.cuda.is_available():
    pytest.skip("no GPU: the GPU tests were skipped", allow_module_level=True)

import dsv4_kernels  # noqa: E402

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "examples"))


def states(seed, n_q, n_kv, heads=4, kv_heads=2, d=128, b=1, dtype=torch.bfloat16, sharpness=3.0):
    """Transposed views [b, h, n, d], as models have them."""
    torch.manual_seed(seed)
    q = torch.randn(b, n_q, heads, d, device="cuda") * sharpness
    k, v = (torch.randn(b, n_kv, kv_heads, d, device="cuda") for _ in range(2))
    return tuple(x.to(dtype).transpose(1, 2) for x in (q, k, v))


def rows(x, i=0):
    return x[i].transpose(0, 1).double().cpu().numpy()


def assert_close(got, want):
    got = got.double().cpu().numpy()
    assert numpy.isfinite(got).all()
    assert numpy.abs(got - want).max() < 2e-2 and numpy.linalg.norm(got - want) < 4e-3 * numpy.linalg.norm(want)


@pytest.mark.parametrize("stride", [4, 8, 16, 32, 64])
@pytest.mark.parametrize("n_q, n_kv", [(1024, 1024), (700, 1900), (129, 1001)])
def test_estimate(n_q, n_kv, stride):
    q, k, _ = states(stride, n_q, n_kv)
    threshold = torch.tensor([0.9, 0.5, 0.0, 1.0])
    sums, mask = dsv4_kernels.xattn_estimate(q, k, 128, stride, threshold=threshold)
    want = reference.block_sums(rows(q), rows(k), stride)
    assert sums.is_cuda and mask.dtype == torch.bool
    assert numpy.allclose(sums[0].cpu().numpy(), want, 1e-3, 1e-5)
    expected = reference.mask_of(sums[0].double().cpu().numpy(), threshold.numpy(), (n_kv - n_q) // 128)
    assert numpy.array_equal(mask[0].cpu().numpy(), expected)


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_prefill(d, dtype):
    q, k, v = states(d, 900, 1500, d=d, b=2, dtype=dtype)
    out, lse = dsv4_kernels.xattn_prefill(q, k, v, 16, threshold=0.7, return_lse=True)
    _, mask = dsv4_kernels.xattn_estimate(q, k, 128, 16, threshold=0.7)
    assert out.dtype == dtype and 0.1 < mask.float().mean() < 0.8
    for i in range(2):
        want, want_lse = reference.attention(rows(q, i), rows(k, i), rows(v, i), mask[i].cpu().numpy())
        assert_close(out[i].transpose(0, 1), want)
        assert numpy.allclose(lse[:, i * 900:(i + 1) * 900].cpu().numpy(), want_lse, 1e-4, 1e-3)


def test_whole_mass_is_sdpa():
    q, k, v = states(1, 2000, 2000)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    got = dsv4_kernels.xattn_prefill(q, k, v, 16, threshold=1.0)
    assert_close(got, want.double().cpu().numpy())


def test_block_sparse():
    q, k, v = states(2, 700, 700)
    lengths = torch.tensor([0, 300, 700], dtype=torch.int32, device="cuda")
    mask = torch.rand(2, 4, 4, 4, device="cuda") < 0.5
    flat = [x[0].transpose(0, 1).contiguous() for x in (q, k, v)]
    out = dsv4_kernels.block_sparse_attn_func(*flat, lengths, lengths, torch.ones(4, dtype=torch.int32), None, mask, 400,
                                              400, 0.0, is_causal=True)
    for i, (begin, end) in enumerate([(0, 300), (300, 700)]):
        want, _ = reference.attention(*(x[begin:end].double().cpu().numpy() for x in flat), mask[i].cpu().numpy())
        got = out[begin:end].double().cpu().numpy()
        assert numpy.abs(got - want).max() < 2e-2


def test_other_memory_orders():
    q, k, v = states(6, 500, 500)
    want = dsv4_kernels.xattn_prefill(q, k, v, 8, threshold=0.7)
    packed = [x.contiguous() for x in (q, k, v)]  # heads outside tokens
    assert torch.equal(dsv4_kernels.xattn_prefill(*packed, 8, threshold=0.7), want)
    lengths = torch.tensor([0, 500], dtype=torch.int32, device="cuda")
    dense = torch.zeros(4, dtype=torch.int32)
    call = lambda *qkv: dsv4_kernels.block_sparse_attn_func(*qkv, lengths, lengths, dense, None, None, 500, 500, 0.0,
                                                            is_causal=True).float()
    strided, flat = ([x[0].transpose(0, 1) for x in each] for each in (packed, (q, k, v)))
    assert (call(*strided) - call(*flat)).abs().max() < 2e-2


def test_capture():
    q, k, v = states(3, 2048, 2048)
    call = lambda: dsv4_kernels.xattn_prefill(q, k, v, 16, threshold=0.8)
    want = call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    out.zero_()
    graph.replay()
    assert torch.equal(out, want)
    q.copy_(states(4, 2048, 2048)[0])
    graph.replay()
    assert torch.equal(out, call())


def test_chunks_are_the_whole():
    q, k, v = states(5, 1900, 1900)
    whole = dsv4_kernels.xattn_prefill(q, k, v, 8, threshold=0.8)
    for chunk in (128, 640):
        parts = [dsv4_kernels.xattn_prefill(q[:, :, i:i + chunk], k[:, :, :min(i + chunk, 1900)],
                                            v[:, :, :min(i + chunk, 1900)], 8, threshold=0.8)
                 for i in range(0, 1900, chunk)]
        assert torch.equal(torch.cat(parts, 2), whole)


def tiny_llama(layers=2):
    transformers = pytest.importorskip("transformers", reason="no transformers")
    config = transformers.LlamaConfig(
        vocab_size=100, hidden_size=256, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=4096, initializer_range=0.2)
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()


@torch.no_grad()
def test_transformers():
    from xattn_transformers import use_xattention
    model = tiny_llama()
    ids = torch.randint(0, 100, (1, 1500), device="cuda")
    model.set_attn_implementation("eager")
    exact = model.float()(ids).logits
    eager = model.to(torch.bfloat16)(ids).logits.float()
    attention = use_xattention(model, threshold=1.0, min_length=0)
    ours = model(ids).logits.float()
    assert attention.sparse_calls == 2
    # As far from float32 as eager bf16 is.
    assert (ours - exact).norm() < 1.3 * (eager - exact).norm()
    attention.threshold, attention.stride = 0.3, 8
    assert (model(ids).logits.float() - exact).norm() > 2 * (eager - exact).norm()
    attention.dense_layers = {0, 1}
    assert (model(ids).logits.float() - exact).norm() < 1.3 * (eager - exact).norm()


@torch.no_grad()
def test_transformers_masks_are_the_reference_algorithms():
    from xattn_transformers import XAttention, use_xattention
    model, seen = tiny_llama(), []

    class Spy(XAttention):
        def __call__(self, module, query, key, value, *rest, **kwargs):
            seen.append((query, key))
            return super().__call__(module, query, key, value, *rest, **kwargs)

    import xattn_transformers
    original, xattn_transformers.XAttention = xattn_transformers.XAttention, Spy
    try:
        use_xattention(model, threshold=0.6, stride=8, min_length=0)
    finally:
        xattn_transformers.XAttention = original
    model(torch.randint(0, 100, (1, 1400), device="cuda"))
    assert len(seen) == 2
    for q, k in seen:
        sums, mask = dsv4_kernels.xattn_estimate(q, k, 128, 8, threshold=0.6)
        want = reference.block_sums(rows(q), rows(k), 8)
        assert numpy.allclose(sums[0].cpu().numpy(), want, 1e-3, 1e-5)
        expected = reference.mask_of(want, numpy.full(4, 0.6))
        different = (mask[0].cpu().numpy() != expected).sum()
        assert different <= 2  # blocks at the cut, within rounding


@torch.no_grad()
def test_transformers_generates():
    from xattn_transformers import use_xattention
    model = tiny_llama()
    ids = torch.randint(0, 100, (1, 700), device="cuda")
    want = model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
    attention = use_xattention(model, threshold=1.0, min_length=0)
    got = model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert attention.sparse_calls == 2 and got.shape == want.shape
