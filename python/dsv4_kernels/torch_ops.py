"""The library's functions as operators of torch (torch.ops.dsv4), each with what torch.compile needs to put it into one
graph. Imported by the modules of modules.py, and by the other functions while torch.compile traces them; nothing else
of the package needs torch.

Functions of the names of _core's take its arguments, and pass tensors and numbers to the operators one by one.
"""

from typing import List, Optional

import torch
from torch import Tensor

from . import _core
from ._arrays import how as _how
from ._arrays import library_of


def _register(name, mutates=()):
    def decorate(function):
        return torch.library.custom_op(f"dsv4::{name}", function, mutates_args=mutates)
    return decorate


# Numbers of a weight that are not tensors: format, layout, bits, e4m3, n, k
WEIGHT_NUMBERS = 6


@_register("kbit_linear")
def _kbit_linear(x: Tensor, data: Tensor, scale: Optional[Tensor], codebook: Optional[Tensor], numbers: List[int],
                 scale2: float) -> Tensor:
    rows, n = x.reshape(-1, x.shape[-1]), numbers[4]
    out = x.new_empty((rows.shape[0], n))
    _core.kbit_linear("linear", rows, (*numbers, data, scale, codebook, scale2), out, *_how(library_of(x)))
    return out.reshape(*x.shape[:-1], n)


@_kbit_linear.register_fake
def _(x, data, scale, codebook, numbers, scale2):
    return x.new_empty((*x.shape[:-1], numbers[4]))


def linear(x, weight):
    """kbit_linear of a KbitWeight."""
    *numbers, data, scale, codebook, scale2 = weight.fields()
    return torch.ops.dsv4.kbit_linear(x, data, scale, codebook, [int(i) for i in numbers], float(scale2))


@_register("kbit_moe")
def _kbit_moe(x: Tensor, data: List[Tensor], scales: List[Optional[Tensor]], codebooks: List[Optional[Tensor]],
              numbers: List[int], scale2: List[float], experts: Tensor, expert_weights: Tensor, activation: int,
              limit: float) -> Tensor:
    """Lists hold what belongs to gate, up and down in turn."""
    out, count, stacks = torch.empty_like(x), len(scale2) // 3, []
    for i in range(3):
        stacks.append((*numbers[i * WEIGHT_NUMBERS:(i + 1) * WEIGHT_NUMBERS], data[i], scales[i], codebooks[i],
                       list(scale2[i * count:(i + 1) * count])))
    _core.kbit_moe(x, *stacks, experts, expert_weights, activation, limit, out, *_how(library_of(x)))
    return out


@_kbit_moe.register_fake
def _(x, data, scales, codebooks, numbers, scale2, experts, expert_weights, activation, limit):
    return torch.empty_like(x)


def moe(x, stacks, experts, expert_weights, activation, limit):
    """kbit_moe of three KbitWeight stacks."""
    from .kbit import ACTIVATIONS
    fields = [stack.fields() for stack in stacks]
    numbers = [int(i) for f in fields for i in f[:WEIGHT_NUMBERS]]
    scale2 = [float(s) for f in fields for s in f[9]]
    return torch.ops.dsv4.kbit_moe(x, [f[6] for f in fields], [f[7] for f in fields], [f[8] for f in fields], numbers,
                                   scale2, experts, expert_weights, ACTIVATIONS.index(activation), limit or 0.0)


@_register("sparse_mla", ("out", "lse", "max_logits"))
def _sparse_mla(q: Tensor, k_cache: Tensor, indices: Tensor, lengths: Optional[Tensor], extra_cache: Optional[Tensor],
                extra_indices: Optional[Tensor], extra_lengths: Optional[Tensor], sink: Optional[Tensor], scale: float,
                out: Tensor, lse: Tensor, max_logits: Optional[Tensor], normalized: bool, exact: bool,
                batch_invariant: bool, implementation: Optional[str]) -> None:
    library = library_of(q)
    extra = None if extra_cache is None else (extra_cache, extra_indices, extra_lengths)
    _core.sparse_mla(q, (k_cache, indices, lengths), extra, sink, scale, out, lse, max_logits, normalized, exact,
                     batch_invariant, implementation, library.stream(), _how(library)[1])


def sparse_mla(q, window, compressed, sink, scale, out, lse, max_logits, normalized, exact, batch_invariant,
               implementation, stream, allocate):
    torch.ops.dsv4.sparse_mla(q, *window, *(compressed or (None,) * 3), sink, scale, out, lse, max_logits, normalized,
                              exact, batch_invariant, implementation)


@_register("xattn_scores", ("sums",))
def _xattn_scores(cu_q: Tensor, cu_kv: Tensor, causal: bool, block: int, q: Tensor, k: Tensor, stride: int,
                  scale: float, sums: Tensor, exact: bool, implementation: Optional[str]) -> None:
    library = library_of(q)
    _core.xattn_scores((cu_q, cu_kv, None, causal, block), q, k, stride, scale, sums,
                       *_how(library, implementation, "exact" if exact else "official"))


def xattn_scores(batch, q, k, stride, scale, sums, how, allocate):
    cu_q, cu_kv, _, causal, block = batch
    torch.ops.dsv4.xattn_scores(cu_q, cu_kv, causal, block, q, k, stride, scale, sums, how[0], how[1])


@_register("xattn_select", ("counts", "indices"))
def _xattn_select(cu_q: Tensor, cu_kv: Tensor, causal: bool, block: int, sums: Tensor, tau: Optional[Tensor],
                  limits: List[int], counts: Tensor, indices: Tensor) -> None:
    _core.xattn_select((cu_q, cu_kv, None, causal, block), sums, tau, None, tuple(limits), counts, indices,
                       *_how(library_of(sums)))


def xattn_select(batch, sums, tau, prompt_lengths, limits, counts, indices, how, allocate):
    cu_q, cu_kv, _, causal, block = batch
    torch.ops.dsv4.xattn_select(cu_q, cu_kv, causal, block, sums, tau, list(limits), counts, indices)


@_register("xattn_prefill", ("out", "lse"))
def _xattn_prefill(cu_q: Tensor, cu_kv: Tensor, causal: bool, block: int, q: Tensor, k: Tensor, v: Tensor,
                   sizes: List[int], tau: Tensor, scale: float, norm: float, out: Tensor, lse: Optional[Tensor],
                   exact: bool, implementation: Optional[str]) -> None:
    library = library_of(q)
    _core.xattn_prefill((cu_q, cu_kv, None, causal, block), q, k, v, tuple(sizes), tau, None, scale, norm, out, lse,
                        *_how(library, implementation, "exact" if exact else "official"))


def xattn_prefill(batch, q, k, v, sizes, tau, prompt_lengths, scale, norm, out, lse, how, allocate):
    cu_q, cu_kv, _, causal, block = batch
    torch.ops.dsv4.xattn_prefill(cu_q, cu_kv, causal, block, q, k, v, list(sizes), tau, scale, float(norm), out, lse,
                                 how[0], how[1])


@_register("block_sparse_attention", ("out", "lse"))
def _block_sparse_attention(cu_q: Tensor, cu_kv: Tensor, causal: bool, block: int, q: Tensor, k: Tensor, v: Tensor,
                            counts: Optional[Tensor], indices: Optional[Tensor], max_q_blocks: int, scale: float,
                            out: Tensor, lse: Optional[Tensor], exact: bool, implementation: Optional[str]) -> None:
    library = library_of(q)
    lists = None if counts is None else (counts, indices)
    _core.block_sparse_attention((cu_q, cu_kv, None, causal, block), q, k, v, lists, max_q_blocks, scale, out, lse,
                                 *_how(library, implementation, "exact" if exact else "official"))


def block_sparse_attention(batch, q, k, v, lists, max_q_blocks, scale, out, lse, how, allocate):
    cu_q, cu_kv, _, causal, block = batch
    torch.ops.dsv4.block_sparse_attention(cu_q, cu_kv, causal, block, q, k, v, *(lists or (None, None)), max_q_blocks,
                                          scale, out, lse, how[0], how[1])
