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


def _numbers(weight):
    return [int(i) for i in weight[:WEIGHT_NUMBERS]]


def _how_of(x, exact, implementation):
    return _how(library_of(x), implementation, "exact" if exact else "official")


@_register("kbit_linear")
def _kbit_linear(x: Tensor, data: Tensor, scale: Optional[Tensor], codebook: Optional[Tensor], numbers: List[int],
                 scale2: float, name: str = "linear", exact: bool = False, implementation: Optional[str] = None,
                 dtype: Optional[torch.dtype] = None) -> Tensor:
    rows, n = x.reshape(-1, x.shape[-1]), numbers[4]
    out = x.new_empty((rows.shape[0], n), dtype=dtype)
    _core.kbit_linear(name, rows, (*numbers, data, scale, codebook, scale2), out, *_how_of(x, exact, implementation))
    return out.reshape(*x.shape[:-1], n)


@_kbit_linear.register_fake
def _(x, data, scale, codebook, numbers, scale2, name="linear", exact=False, implementation=None, dtype=None):
    return x.new_empty((*x.shape[:-1], numbers[4]), dtype=dtype)


def linear(x, weight, name="linear", numerics="official", implementation=None, out=None):
    """kbit_linear of a KbitWeight, in the dtype of out (x)."""
    *_, data, scale, codebook, scale2 = fields = weight.fields()
    return torch.ops.dsv4.kbit_linear(x, data, scale, codebook, _numbers(fields), float(scale2), name, numerics == "exact",
                                      implementation, (x if out is None else out).dtype)


def _flat(stacks):
    """(data, scales, codebooks, numbers, scale2, lengths) of stacks or lists of KbitWeight in turn; length: -1 for a stack."""
    data, scales, books, numbers, scale2, lengths = [], [], [], [], [], []
    for stack in stacks:
        listed = isinstance(stack, list)
        lengths.append(len(stack) if listed else -1)
        for weight in stack if listed else [stack]:
            fields = weight.fields()
            data.append(fields[6])
            scales.append(fields[7])
            books.append(fields[8])
            numbers += _numbers(fields)
            scale2 += [float(s) for s in ([fields[9]] if listed else fields[9])]
    return data, scales, books, numbers, scale2, lengths


def _stacks_of(data, scales, codebooks, numbers, scale2, lengths):
    """The inverse, as _core takes them."""
    at, factor = 0, 0

    def next_fields(count):
        nonlocal at, factor
        i, first = at, factor
        at, factor = at + 1, factor + abs(count)
        of = list(scale2[first:factor]) if count < 0 else scale2[first]
        return (*numbers[i * WEIGHT_NUMBERS:(i + 1) * WEIGHT_NUMBERS], data[i], scales[i], codebooks[i], of)
    return [next_fields(-data[at].shape[0]) if length < 0 else [next_fields(1) for _ in range(length)] for length in lengths]


@_register("kbit_expert_linear")
def _kbit_expert_linear(x: Tensor, data: List[Tensor], scales: List[Optional[Tensor]], codebooks: List[Optional[Tensor]],
                        numbers: List[int], scale2: List[float], lengths: List[int], offsets: Tensor, n: int, name: str,
                        exact: bool, implementation: Optional[str], dtype: torch.dtype) -> Tensor:
    out = x.new_empty((x.shape[0], n), dtype=dtype)
    [weights] = _stacks_of(data, scales, codebooks, numbers, scale2, lengths)
    _core.kbit_expert_linear(name, x, weights, offsets, out, *_how_of(x, exact, implementation))
    return out


@_kbit_expert_linear.register_fake
def _(x, data, scales, codebooks, numbers, scale2, lengths, offsets, n, name, exact, implementation, dtype):
    return x.new_empty((x.shape[0], n), dtype=dtype)


def expert_linear(x, weights, offsets, n, name="expert_linear", numerics="official", implementation=None, out=None):
    """kbit_expert_linear or kbit_grouped_gemm of a stack or a list of KbitWeight, in the dtype of out (x)."""
    return torch.ops.dsv4.kbit_expert_linear(x, *_flat([weights]), offsets, n, name, numerics == "exact", implementation,
                                             (x if out is None else out).dtype)


@_register("kbit_moe")
def _kbit_moe(x: Tensor, data: List[Tensor], scales: List[Optional[Tensor]], codebooks: List[Optional[Tensor]],
              numbers: List[int], scale2: List[float], lengths: List[int], experts: Tensor, expert_weights: Tensor,
              activation: int, limit: float, exact: bool, implementation: Optional[str], dtype: torch.dtype) -> Tensor:
    out = x.new_empty(x.shape, dtype=dtype)
    stacks = _stacks_of(data, scales, codebooks, numbers, scale2, lengths)
    _core.kbit_moe(x, *stacks, experts, expert_weights, activation, limit, out, *_how_of(x, exact, implementation))
    return out


@_kbit_moe.register_fake
def _(x, data, scales, codebooks, numbers, scale2, lengths, experts, expert_weights, activation, limit, exact,
      implementation, dtype):
    return x.new_empty(x.shape, dtype=dtype)


def moe(x, stacks, experts, expert_weights, activation, limit, numerics="official", implementation=None, out=None):
    """kbit_moe of three stacks or lists of KbitWeight, in the dtype of out (x)."""
    from .kbit import ACTIVATIONS
    return torch.ops.dsv4.kbit_moe(x, *_flat(stacks), experts, expert_weights, ACTIVATIONS.index(activation), limit or 0.0,
                                   numerics == "exact", implementation, (x if out is None else out).dtype)


@_register("kbit_codebook")
def _kbit_codebook(name: str, k: int, like: Tensor) -> Tensor:
    values = torch.empty(2**k, dtype=torch.float32)
    _core.kbit_codebook(name, k, values)
    return values.to(like.device)


@_kbit_codebook.register_fake
def _(name, k, like):
    return like.new_empty((2**k,), dtype=torch.float32)


def codebook(name, k, like):
    return torch.ops.dsv4.kbit_codebook(name, k, like)


@_register("quantize_kbit", ("data", "scale"))
def _quantize_kbit(x: Tensor, codebook: Tensor, bits: int, search: bool, importance: Optional[Tensor], scale2: float,
                   data: Tensor, scale: Tensor) -> None:
    _core.quantize_kbit(x, codebook, bits, search, importance, scale2, data, scale, *_how(library_of(x)))


def quantize_kbit(x, codebook, bits, search, importance, scale2, data, scale, how, allocate):
    torch.ops.dsv4.quantize_kbit(x, codebook, bits, search, importance, float(scale2), data, scale)


@_register("dequantize_kbit", ("out",))
def _dequantize_kbit(data: Tensor, scale: Optional[Tensor], codebook: Optional[Tensor], numbers: List[int], scale2: float,
                     out: Tensor) -> None:
    _core.dequantize_kbit((*numbers, data, scale, codebook, scale2), out, *_how(library_of(data)))


def dequantize_kbit(weight, out, how, allocate):
    torch.ops.dsv4.dequantize_kbit(*weight[6:9], _numbers(weight), float(weight[9]), out)


@_register("repack_kbit", ("to_data", "to_scale"))
def _repack_kbit(data: Tensor, scale: Optional[Tensor], codebook: Optional[Tensor], numbers: List[int], scale2: float,
                 to_layout: int, to_data: Tensor, to_scale: Optional[Tensor]) -> None:
    first, _, *rest = numbers
    _core.repack_kbit((*numbers, data, scale, codebook, scale2), (first, to_layout, *rest, to_data, to_scale, codebook, scale2),
                      *_how(library_of(data)))


def repack_kbit(weight, to, how, allocate):
    torch.ops.dsv4.repack_kbit(*weight[6:9], _numbers(weight), float(weight[9]), to[1], to[6], to[7])


@_register("repack_scales", ("rows", "tiles"))
def _repack_scales(rows: Tensor, tiles: Tensor, to_rows: bool) -> None:
    _core.repack_scales(rows, tiles, to_rows, *_how(library_of(rows)))


def repack_scales(rows, tiles, to_rows, how, allocate):
    torch.ops.dsv4.repack_scales(rows, tiles, to_rows)


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
