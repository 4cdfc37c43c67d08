"""The library's attention as one function; FlashMLA's functions are special cases of it."""

from . import _core
from ._arrays import how, library_of

_NUMERICS = {"official": False, "exact": True}


def sparse_mla(q, k_cache, indices, scale, *, d_v=512, topk_length=None, extra_k_cache=None,
               extra_indices_in_kvcache=None, extra_topk_length=None, attn_sink=None, normalized=True,
               numerics="official", batch_invariant=False, implementation=None):
    """Attention of every query to the entries in its indices, with one softmax over one or two caches.

    q               [b, s_q, h, d] bf16|f32, any strides, the last must be 1
    k_cache         [num_pages, page, 1, 584|656] FP8, int8 or uint8: packed V4 or V3.2 entries, any page stride;
                    or [num_pages, page, 1, d] bf16|f32: plain entries
    indices         [b, s_q, n] int32: page * page_size + entry; negative, or past the cache on a GPU: skipped
    scale           > 0
    d_v             the first d_v values of an entry are its value
    topk_length     [b] int32: the queries of request i use only their first topk_length[i] indices
    extra_*         the same for the second cache
    attn_sink       [h] f32, natural logarithm; scales out by exp(lse) / (exp(lse) + exp(sink)), only
    normalized      False: out = sum_j exp(z_j - max_logits) v_j without sink, for combining partials
    numerics        "official" rounds exp(z_j - max) to bf16 for PV, "exact" keeps float32 (slow)
    batch_invariant only implementations where the bits of a query depend only on its own entries
    implementation  its name; None: the fastest that supports the arguments

    Returns out [b, s_q, h, d_v] of q's dtype, lse [b, h, s_q] f32 (natural, without the sink), max_logits
    [b, h, s_q] f32. A query without a valid index gets 0, +inf and -inf. Raises ValueError with one line for
    arguments that do not match this description.
    """
    return attend(q, (k_cache, indices, topk_length), scale, d_v=d_v,
                  extra=(extra_k_cache, extra_indices_in_kvcache, extra_topk_length), sink=attn_sink,
                  normalized=normalized, numerics=numerics, batch_invariant=batch_invariant,
                  implementation=implementation, want_max_logits=True)


def kv_insert(x, rows, k_cache):
    """Writes entries of a cache in place, quantized to its form; returns k_cache.

    x        [n, 512|576] bf16|f32: entries of V4 or V3.2; of a plain cache [n, d]
    rows     [n] int32: page * page_size + entry, distinct; negative ones are skipped
    k_cache  [num_pages, page, 1, 584|656] FP8, int8 or uint8: packed V4 or V3.2 entries, any page stride;
             or [num_pages, page, 1, d] f32
    """
    _core.kv_insert(x, rows, k_cache, *how(library_of(x)))
    return k_cache


def attend(q, first, scale, *, d_v, extra, sink, numerics, batch_invariant, want_max_logits, normalized=True,
           implementation=None):
    """sparse_mla() with each list as (cache, indices, lengths); max_logits is None unless requested."""
    if numerics not in _NUMERICS:
        raise ValueError(f"numerics={numerics!r}: want 'official' or 'exact'")
    if len(q.shape) != 4:
        raise ValueError(f"q: want [b, s_q, h, d], got {list(q.shape)}")
    b, s_q, h, _ = q.shape
    library = library_of(q)
    if extra[0] is None:
        if extra[1] is not None or extra[2] is not None:
            raise ValueError("extra_indices_in_kvcache or extra_topk_length without extra_k_cache")
        extra = None
    elif extra[1] is None:
        raise ValueError("extra_k_cache without extra_indices_in_kvcache")
    out, lse = library.like((b, s_q, h, d_v)), library.empty((b, h, s_q), "float32")
    max_logits = library.empty((b, h, s_q), "float32") if want_max_logits else None
    library.kernels().sparse_mla(q, first, extra, sink, scale, out, lse, max_logits, normalized, _NUMERICS[numerics],
                                 batch_invariant, implementation, library.stream(),
                                 lambda size: library.empty((size,), "uint8"))
    return out, lse, max_logits
