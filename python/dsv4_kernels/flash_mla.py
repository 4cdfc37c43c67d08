"""FlashMLA's Python interface (deepseek-ai/FlashMLA 9241ae3) for its sparse modes: names, order, defaults and
meaning of every argument are that library's, so that code written for it runs unchanged. Extensions: any
number of heads and any top-k, topk_length with V3.2 entries, float32 queries, and two keyword-only switches."""

import dataclasses
from typing import Optional

from .sparse_mla import attend


@dataclasses.dataclass
class FlashMLASchedMeta:
    """One object per group of calls of the same shape; the first call records the shape and later calls must
    match it. It holds no schedule: the library decides from shapes alone, at every call."""

    have_initialized: bool = False
    config: Optional[dict] = None
    tile_scheduler_metadata: None = None
    num_splits: None = None

    def check(self, config):
        if not self.have_initialized:
            self.have_initialized, self.config = True, config
            return
        for name, value in config.items():
            if self.config[name] != value:
                raise ValueError(f"{name}={value}, but this FlashMLASchedMeta was first used with "
                                 f"{name}={self.config[name]}: get a new one from get_mla_metadata()")


def get_mla_metadata(*args, **kwargs):
    """(FlashMLASchedMeta(), None), for any arguments."""
    return FlashMLASchedMeta(), None


def _width(cache, axis):
    return None if cache is None else cache.shape[axis]


def flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata,
                           num_splits=None, softmax_scale=None, causal=False, is_fp8_kvcache=False, indices=None,
                           attn_sink=None, extra_k_cache=None, extra_indices_in_kvcache=None, topk_length=None,
                           extra_topk_length=None, *, batch_invariant=False, numerics="official"):
    """Sparse decode over packed FP8 entries. Shapes as in sparse_mla(); q has d = 512 for V4 and 576 for V3.2.

    block_table and cache_seqlens belong to the dense mode and are ignored. The dense mode (indices=None)
    raises NotImplementedError. Returns out [b, s_q, h, 512] and lse [b, h, s_q].
    """
    if not isinstance(tile_scheduler_metadata, FlashMLASchedMeta):
        raise ValueError("tile_scheduler_metadata: want the first result of get_mla_metadata(), got "
                         f"{type(tile_scheduler_metadata).__name__}")
    if num_splits is not None:
        raise ValueError("num_splits: want None")
    if indices is None:
        raise NotImplementedError("dense attention (indices=None) is not implemented: only the sparse mode is")
    if causal:
        raise ValueError("causal=True: the sparse mode attends to all indices")
    if not is_fp8_kvcache:
        raise ValueError("is_fp8_kvcache=False: the sparse mode needs packed FP8 entries (flash_mla_sparse_fwd takes "
                         "bf16)")
    if len(q.shape) != 4 or len(k_cache.shape) != 4:
        raise ValueError("want q [b, s_q, h_q, d] and k_cache [num_pages, page, 1, bytes], got "
                         f"{list(q.shape)} and {list(k_cache.shape)}")
    if head_dim_v != 512:
        raise ValueError(f"head_dim_v={head_dim_v}: want 512")
    width = {512: 584, 576: 656}.get(q.shape[3])
    if width is None:
        raise ValueError(f"q has d={q.shape[3]}: want 512 (V4) or 576 (V3.2)")
    for name, cache in (("k_cache", k_cache), ("extra_k_cache", extra_k_cache)):
        if cache is not None and cache.shape[-1] != width:
            raise ValueError(f"{name}: want entries of {width} bytes for q of {q.shape[3]} values, got "
                             f"{cache.shape[-1]}")
    tile_scheduler_metadata.check({
        "b": q.shape[0], "s_q": q.shape[1], "h_q": q.shape[2], "page_block_size": k_cache.shape[1],
        "h_k": k_cache.shape[2], "topk": indices.shape[-1], "extra_page_block_size": _width(extra_k_cache, 1),
        "extra_topk": _width(extra_indices_in_kvcache, -1)})
    scale = q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale
    out, lse, _ = attend(
        q, (k_cache, indices, topk_length), scale, d_v=head_dim_v,
        extra=(extra_k_cache, extra_indices_in_kvcache, extra_topk_length), sink=attn_sink, numerics=numerics,
        batch_invariant=batch_invariant, want_max_logits=False)
    return out, lse


def flash_mla_sparse_fwd(q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None, *,
                         batch_invariant=False, numerics="official"):
    """Sparse prefill over a bf16 latent.

    q [s_q, h_q, d], kv [s_kv, 1, d], indices [s_q, 1, topk] int32 (negative or >= s_kv: skipped),
    topk_length [s_q] int32. Returns out [s_q, h_q, d_v], max_logits [s_q, h_q] and lse [s_q, h_q], natural units.
    """
    if len(q.shape) != 3 or len(kv.shape) != 3 or len(indices.shape) != 3:
        raise ValueError("want q [s_q, h_q, d], kv [s_kv, 1, d] and indices [s_q, 1, topk], got "
                         f"{list(q.shape)}, {list(kv.shape)} and {list(indices.shape)}")
    # One request per query, one page per entry.
    out, lse, max_logits = attend(
        q[:, None], (kv[:, None], indices, topk_length), sm_scale, d_v=d_v, extra=(None, None, None), sink=attn_sink,
        numerics=numerics, batch_invariant=batch_invariant, want_max_logits=True)
    return out[:, 0], max_logits[:, :, 0], lse[:, :, 0]
