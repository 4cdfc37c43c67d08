#!/usr/bin/env python3
"""XAttention and block-sparse attention beside cuDNN (torch SDPA) and FlexAttention, in one run.

    PYTHONPATH=build/python python3 bench/peer_xattn.py [--out FILE] [--quick]

32 query heads, 8 key heads of 128, bf16, causal, one prompt. Needs torch, a GPU and the dsv4_kernels package (step
python of tools/gpu_check.sh); exit status 77 where they are missing.

Lists of the attention rows: every visible block with one probability, block 0 and the diagonal always. The pipeline
rows use queries and keys with topics, and the threshold whose density is closest to the wished one from above: all
stages of xattn_prefill, where density counts the visible blocks that were listed. Times are medians of events, peers and
ours alternating; tflop_per_s counts the listed blocks (causal halves of diagonal blocks as a half).
"""

import argparse
import json
import statistics
import sys

HEADS, KV_HEADS, D, BLOCK = 32, 8, 128, 128


def time_ms(torch, calls, seconds=1.2):
    """Median ms of each call; they alternate."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def once(call):
        events[0].record()
        call()
        events[1].record()
        events[1].synchronize()
        return events[0].elapsed_time(events[1])
    for call in calls:
        call()
        call()
    torch.cuda.synchronize()
    per_round = sum(once(call) for call in calls) / 1000
    rounds = max(5, min(60, int(seconds / per_round)))
    times = [[once(call) for call in calls] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*times)]


def flop(n, density=1.0):
    return 2 * n * n * D * HEADS * density


class Prompt:
    """Queries, keys and values with topics: a query's topic is that of some earlier keys."""

    def __init__(self, torch, n, contrast=0.0):
        torch.manual_seed(n)
        make = lambda heads: torch.randn(1, n, heads, D, device="cuda", dtype=torch.bfloat16)
        self.n, self.q, self.k, self.v = n, make(HEADS), make(KV_HEADS), make(KV_HEADS)
        if contrast > 0:
            topics = torch.randn(n // 256 + 1, D, device="cuda")
            run = torch.arange(n, device="cuda") // 256
            # Every head and run of queries follows some earlier runs of keys, nearer ones more often.
            for head in range(HEADS):
                back = (torch.rand(int(run[-1]) + 1, device="cuda")**2 * (torch.arange(int(run[-1]) + 1, device="cuda") + 1))
                wanted = (torch.arange(int(run[-1]) + 1, device="cuda") - back.long()).clamp(min=0)
                self.q[0, :, head] += (contrast * topics[wanted[run]]).to(torch.bfloat16)
            self.k[0] += (contrast * topics[run]).to(torch.bfloat16)[:, None]
        self.q, self.k, self.v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))
        self.flat = [x[0].transpose(0, 1) for x in (self.q, self.k, self.v)]
        self.lengths = torch.tensor([0, n], dtype=torch.int32, device="cuda")


def random_mask(torch, n, density):
    blocks = -(-n // BLOCK)
    mask = torch.rand(1, HEADS, blocks, blocks, device="cuda") < density
    mask[..., 0] = True
    mask |= torch.eye(blocks, dtype=torch.bool, device="cuda")
    return mask.tril()


def density_of(mask):
    blocks = mask.shape[-1]
    return mask.sum().item() / mask.shape[1] / (blocks * (blocks + 1) / 2)


def work(mask, n):
    """FLOP of the listed blocks."""
    blocks = mask.sum().item()
    diagonal = mask.diagonal(dim1=-2, dim2=-1).sum().item()
    return 4 * BLOCK * BLOCK * D * (blocks - 0.5 * diagonal)


class Peers:
    def __init__(self, torch):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.attention.flex_attention import BlockMask, flex_attention
        self.torch, self.BlockMask, self.backend = torch, BlockMask, (sdpa_kernel, SDPBackend.CUDNN_ATTENTION)
        self.flex = torch.compile(flex_attention, dynamic=False)

    def dense(self, prompt):
        """Keys repeated beforehand, where the backend does not share them."""
        (kernel, backend), sdpa = self.backend, self.torch.nn.functional.scaled_dot_product_attention

        def call(k=prompt.k, v=prompt.v, gqa=True):
            with kernel(backend):
                return sdpa(prompt.q, k, v, is_causal=True, enable_gqa=gqa)
        try:
            call()
            return call
        except RuntimeError:
            k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (prompt.k, prompt.v))
            return lambda: call(k, v, False)

    def block_mask(self, mask):
        """Full blocks below the diagonal, masked ones on it."""
        torch = self.torch
        diagonal = torch.eye(mask.shape[-1], dtype=torch.bool, device=mask.device)
        lists = []
        for part in (mask & diagonal, mask & ~diagonal):
            order = part.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
            lists += [part.sum(-1).to(torch.int32), order]
        return self.BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=BLOCK, mask_mod=lambda b, h, q, k: q >= k)

    def sparse(self, prompt, mask):
        block_mask = self.block_mask(mask)
        return lambda: self.flex(prompt.q, prompt.k, prompt.v, block_mask=block_mask, enable_gqa=True)


def our_attention(dsv4_kernels, torch, prompt, mask):
    """The call on lists, without their conversion from a mask."""
    from dsv4_kernels import _core
    counts, indices = dsv4_kernels.block_lists_of(mask)
    out = torch.empty_like(prompt.flat[0])
    workspace = torch.empty(1 << 22, dtype=torch.uint8, device="cuda")
    batch = (prompt.lengths, prompt.lengths, None, True, BLOCK)

    def call():
        how = (False, None, torch.cuda.current_stream().cuda_stream)
        _core.block_sparse_attention(batch, *prompt.flat, (counts, indices), 1, D**-0.5, out, None, how,
                                     lambda size: workspace[:size])
        return out
    return call


def attention_rows(torch, dsv4_kernels, peers, n, densities):
    prompt = Prompt(torch, n)
    for density in densities:
        mask = random_mask(torch, n, density)
        calls = {"ours": our_attention(dsv4_kernels, torch, prompt, mask), "flex": peers.sparse(prompt, mask)}
        if density == 1:
            calls["cudnn"] = peers.dense(prompt)
        reference = calls["flex"]()[0].transpose(0, 1).float()
        difference = ((calls["ours"]().float() - reference).norm() / reference.norm()).item()
        del reference
        times = dict(zip(calls, time_ms(torch, list(calls.values()))))
        yield {"what": "attention", "tokens": n, "density": density_of(mask), "ms": times, "difference": difference,
               "tflop_per_s": {name: work(mask, n) / ms * 1e-9 for name, ms in times.items()}}


def threshold_for(dsv4_kernels, prompt, stride, density):
    """By bisection over thresholds; (threshold, density)."""
    low, high = 0.0, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        _, mask = dsv4_kernels.xattn_estimate(prompt.q, prompt.k, BLOCK, stride, threshold=middle)
        low, high = (low, middle) if density_of(mask) >= density else (middle, high)
        del mask
    _, mask = dsv4_kernels.xattn_estimate(prompt.q, prompt.k, BLOCK, stride, threshold=high)
    return high, density_of(mask)


def scoring(dsv4_kernels, torch, prompt, stride):
    from dsv4_kernels import _core
    blocks = -(-prompt.n // BLOCK)
    sums = torch.empty(1, HEADS, blocks, blocks, device="cuda")
    counts = torch.empty(1, HEADS, blocks, dtype=torch.int32, device="cuda")
    indices = torch.empty(1, HEADS, blocks, blocks, dtype=torch.int32, device="cuda")
    workspace = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    batch, tau = (prompt.lengths, prompt.lengths, None, True, BLOCK), torch.full((HEADS,), 0.9, device="cuda")
    how = lambda: (False, None, torch.cuda.current_stream().cuda_stream)
    take = lambda size: workspace[:size]
    return (lambda: _core.xattn_scores(batch, prompt.flat[0], prompt.flat[1], stride, D**-0.5, sums, how(), take),
            lambda: _core.xattn_select(batch, sums, tau, None, (0, 0, 0, 1, 0, 0), counts, indices, how(), take))


def stage_rows(torch, dsv4_kernels, prompt):
    for stride in (8, 16):
        scores, select = scoring(dsv4_kernels, torch, prompt, stride)
        scores()
        ms = time_ms(torch, [scores, select])
        yield {"what": f"scores S {stride}", "tokens": prompt.n, "ms": {"ours": ms[0]},
               "tflop_per_s": {"ours": flop(prompt.n) / 2 / stride / ms[0] * 1e-9}}
    yield {"what": "selection", "tokens": prompt.n, "ms": {"ours": ms[1]}}


def pipeline_rows(torch, dsv4_kernels, peers, prompt, stride, densities):
    for density in densities:
        threshold, reached = threshold_for(dsv4_kernels, prompt, stride, density)
        calls = {"ours": lambda: dsv4_kernels.xattn_prefill(prompt.q, prompt.k, prompt.v, stride, threshold=threshold),
                 "cudnn": peers.dense(prompt)}
        yield {"what": f"all stages S {stride}", "tokens": prompt.n, "density": reached, "threshold": threshold,
               "ms": dict(zip(calls, time_ms(torch, list(calls.values()))))}


def report(torch, dsv4_kernels, quick):
    peers, rows = Peers(torch), []

    def add(results):
        for row in results:
            rows.append(row)
            print(json.dumps(row), file=sys.stderr)
    lengths = [32768] if quick else [32768, 131072]
    for n in lengths:
        add(attention_rows(torch, dsv4_kernels, peers, n, [0.08, 0.1, 0.25, 0.5, 1] if n <= 32768 else [0.1, 0.5, 1]))
        prompt = Prompt(torch, n, contrast=0.6)
        add(stage_rows(torch, dsv4_kernels, prompt))
        add(pipeline_rows(torch, dsv4_kernels, peers, prompt, 16, [0.26] if n <= 32768 else [0.1, 0.25]))
        del prompt
    for n in [4096, 6144, 8192, 16384]:  # the break-even
        add(pipeline_rows(torch, dsv4_kernels, peers, Prompt(torch, n, contrast=0.6), 16, [0.4]))
    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version(), "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": D,
            "dtype": "bf16", "results": rows}


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--quick", action="store_true", help="32K and less")
    options = parser.parse_args(argv)
    try:
        import dsv4_kernels
        import torch
    except ImportError as error:
        print(f"peer_xattn: {error}")
        return 77
    if not torch.cuda.is_available():
        print("peer_xattn: no GPU")
        return 77
    with torch.no_grad():
        text = json.dumps(report(torch, dsv4_kernels, options.quick), indent=1) + "\n"
    if options.out is None:
        sys.stdout.write(text)
    else:
        with open(options.out, "w") as file:
            file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
