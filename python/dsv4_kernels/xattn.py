"""XAttention and block-sparse attention for prompts of ordinary models, under the names, orders and defaults of
mit-han-lab/x-attention (xattn_estimate, Xattention_prefill) and mit-han-lab/Block-Sparse-Attention
(block_sparse_attn_func). What is different is said in each function; what these libraries offer and this one does not
raises an error. Nothing is compiled at run time, and no call but block_sparse_attn_func waits for the GPU.
"""

from ._arrays import how as _how
from ._arrays import library_of

BLOCK = 128


class _Batch:
    """b sequences of one length: [b, h, n, d] as rows [b n, h, d] with cumulative lengths."""

    def __init__(self, query, key, block, causal, norm):
        for name, states in (("query_states", query), ("key_states", key)):
            if len(states.shape) != 4:
                raise ValueError(f"{name}: want [b, heads, tokens, d], got {list(states.shape)}")
        self.b, self.heads, self.queries, self.d = query.shape
        self.kv_heads, self.keys = key.shape[1], key.shape[2]
        if key.shape[0] != self.b or key.shape[3] != self.d:
            raise ValueError(f"key_states {list(key.shape)} do not fit query_states {list(query.shape)}")
        if self.kv_heads == 0 or self.heads % self.kv_heads != 0:
            raise ValueError(f"{self.heads} query heads do not share {self.kv_heads} key heads evenly")
        if not norm > 0:
            raise ValueError(f"norm={norm}: want a positive number")
        if block not in (64, 128):
            raise ValueError(f"block_size={block}: want 64 or 128")
        self.library, self.block, self.causal = library_of(query), block, causal
        ends = self.library.arange(self.b + 1)
        self.lengths = (ends * self.queries, ends * self.keys, None, causal, block)
        first = self.keys - self.queries if causal else 0  # position of query 0
        self.first_block = first // block
        self.q_blocks = (first + self.queries - 1) // block - self.first_block + 1 if self.queries > 0 else 0
        self.k_blocks = -(-self.keys // block)

    def rows(self, states):
        """[b, heads, n, d] -> packed [b n, heads, d]; a copy unless the memory has that order."""
        b, heads, n, d = states.shape
        return self.library.packed(states.swapaxes(1, 2)).reshape(b * n, heads, d)

    def thresholds(self, threshold):
        """[heads] f32 of a number, a sequence or an array."""
        shape = (len(threshold),) if isinstance(threshold, (list, tuple)) else tuple(getattr(threshold, "shape", ()))
        if shape == ():
            return self.library.full((self.heads,), float(threshold), "float32")
        if shape != (self.heads,):
            raise ValueError(f"threshold: want a number or [{self.heads}], got {list(shape)}")
        return self.library.packed(self.library.array(threshold, "float32"))


def block_mask_of(counts, indices):
    """The lists of xattn_select as a bool mask [.., q_blocks, k_blocks]."""
    library, columns = library_of(indices), indices.shape[-1]
    mask = library.full((*indices.shape[:-1], columns + 1), False, "bool")
    past = library.full((1,), columns, "int32")
    library.put_along_last(mask, library.where(indices < 0, past, indices), library.full((1,), True, "bool"))
    return mask[..., :columns]


def block_lists_of(mask):
    """(counts, indices) int32 of a bool mask [.., k_blocks]; indices are -1 past the count."""
    library, columns = library_of(mask), mask.shape[-1]
    slots = mask.cumsum(-1) - 1
    indices = library.full((*mask.shape[:-1], columns + 1), -1, "int32")
    library.put_along_last(indices, library.where(mask, slots, library.full((1,), columns, "int64")),
                           library.arange(columns))
    return library.array(mask.sum(-1), "int32"), library.packed(indices[..., :columns])


def _estimate(batch, q, k, stride, norm, thresholds, implementation, *, top_k=0, min_blocks=0, max_blocks=0,
              no_sink=False, dense_tail=0):
    """Block sums and lists; implementation: of the sums."""
    library, how = batch.library, _how(batch.library)
    shape = (batch.b, batch.heads, max(batch.q_blocks, 1), max(batch.k_blocks, 1))
    sums = library.empty(shape, "float32")
    library.kernels().xattn_scores(batch.lengths, q, k, stride, batch.d**-0.5 / norm, sums,
                                   *_how(library, implementation))
    counts, indices = library.empty(shape[:3], "int32"), library.empty(shape, "int32")
    limits = (top_k, min_blocks, max_blocks, int(not no_sink), 0, dense_tail)
    library.kernels().xattn_select(batch.lengths, sums, thresholds, None, limits, counts, indices, *how)
    return sums, counts, indices


def xattn_estimate(query_states, key_states, block_size, stride, norm=1, softmax=True, threshold=0.9, chunk_size=16384,
                   select_mode="inverse", use_triton=True, causal=True, kdb=1, keep_sink=False, keep_recent=False, *,
                   top_k=0, min_blocks=0, max_blocks=0, no_sink=False, dense_tail=0, implementation=None):
    """Block sums f32 and the bool mask of the blocks to attend to, both [b, heads, q_blocks, k_blocks].

    query_states [b, heads, q_len, d], key_states [b, kv_heads, kv_len, d]: any lengths, heads a multiple of kv_heads;
    transposed views of [b, len, heads, d] are read in place, others are copied
    threshold    a number, or one per head
    norm         temperature of the scores: larger lists more blocks
    top_k, min_blocks, max_blocks, dense_tail    blocks of a row, and tokens at the end that see everything
    no_sink      block 0 is listed only where its sum is large enough
    implementation  of the block sums, by its name; None: the first that takes the call

    Unlike the original: shapes are those of the real lengths, not of padded ones. The causal offset is kv_len - q_len,
    and blocks are aligned to positions. chunk_size and use_triton do nothing: the result has no chunks. Every row takes
    the smallest set of blocks; block 0 (but for no_sink) and the diagonal block are always listed, so keep_sink and
    keep_recent have no effect.
    """
    if not softmax:
        raise NotImplementedError("softmax=False is not implemented")
    if select_mode not in ("inverse", ""):
        raise NotImplementedError(f"select_mode={select_mode!r}: only 'inverse', the antidiagonal, is implemented")
    if kdb != 1:
        raise NotImplementedError(f"kdb={kdb}: only 1 is implemented")
    batch = _Batch(query_states, key_states, block_size, causal, norm)
    sums, counts, indices = _estimate(
        batch, batch.rows(query_states), batch.rows(key_states), stride, norm, batch.thresholds(threshold),
        implementation, top_k=top_k, min_blocks=min_blocks, max_blocks=max_blocks, no_sink=no_sink,
        dense_tail=dense_tail)
    return sums, block_mask_of(counts, indices)


def xattn_prefill(query_states, key_states, value_states, stride, norm=1, threshold=0.8, block_size=128,
                  use_triton=True, causal=True, kdb=1, chunk_size=None, keep_sink=False, keep_recent=False, *,
                  softmax_scale=None, dense=False, min_length=0, dense_tail=0, return_lse=False, implementation=None):
    """Estimate, selection and attention in one call. Returns [b, heads, q_len, d_v] of the dtype of query_states,
    a transposed view of [b, q_len, heads, d_v].

    Arguments as in xattn_estimate(). value_states [b, kv_heads, kv_len, d_v].
    softmax_scale  of the attention and, divided by norm, of the scores; None: d**-0.5
    dense          this layer is not approximated
    min_length     prompts with fewer keys than this are dense (4096 is the break-even on an H200)
    dense_tail     the last tokens of a prompt see everything
    return_lse     also lse [heads, b q_len], natural logarithm
    """
    if kdb != 1:
        raise NotImplementedError(f"kdb={kdb}: only 1 is implemented")
    batch = _Batch(query_states, key_states, block_size, causal, norm)
    library = batch.library
    rows = batch.b * batch.queries
    out = library.like((rows, batch.heads, value_states.shape[3]))
    lse = library.empty((batch.heads, rows), "float32") if return_lse else None
    scale = batch.d**-0.5 if softmax_scale is None else softmax_scale
    sizes = (max(batch.queries, 1), max(batch.keys, 1), stride, int(dense), min_length, dense_tail)
    states = (batch.rows(query_states), batch.rows(key_states), batch.rows(value_states))
    library.kernels().xattn_prefill(batch.lengths, *states, sizes, batch.thresholds(threshold), None, scale, norm, out,
                                    lse, *_how(library, implementation))
    out = out.reshape(batch.b, batch.queries, batch.heads, value_states.shape[3]).swapaxes(1, 2)
    return (out, lse) if return_lse else out


Xattention_prefill = xattn_prefill


def _offsets(cu_seqlens_q, cu_seqlens_k):
    """[b] kv_len - q_len of the sequences."""
    more = cu_seqlens_k - cu_seqlens_q
    return more[1:] - more[:-1]


def _mask_of_heads(kinds, streaming_info, base_blockmask, shape, first_blocks, library):
    """A mask [b, heads, rows, columns] of the three kinds of heads; first_blocks [b]: block of row 0, if causal."""
    b, heads, rows, columns = shape
    mask = library.full(shape, False, "bool")
    for head, kind in enumerate(kinds):
        if kind == 0:
            mask[:, head] = True
        elif kind > 0:
            mask[:, head] = base_blockmask[:, sum(k > 0 for k in kinds[:head])] != 0
        else:
            sink, local = int(streaming_info[2 * head]), int(streaming_info[2 * head + 1])
            diagonal = library.arange(rows)[None, :, None] + first_blocks[:, None, None]
            column = library.arange(columns)[None, None, :]
            mask[:, head] = (column < sink) | ((column > diagonal - local) & (column <= diagonal))
    return mask


def block_sparse_attn_func(q, k, v, cu_seqlens_q, cu_seqlens_k, head_mask_type, streaming_info, base_blockmask,
                           max_seqlen_q_, max_seqlen_k_, p_dropout, deterministic=False, softmax_scale=None,
                           is_causal=False, exact_streaming=False, return_attn_probs=False, *, implementation=None):
    """Attention over the blocks of 128 x 128 of a mask. Returns out [total_q, heads, d_v].

    q [total_q, heads, d], k [total_k, kv_heads, d], v [total_k, kv_heads, d_v], cu_seqlens_* [b + 1] int32
    head_mask_type   [heads] int32: 0 dense, positive: the next head of base_blockmask, negative: streaming
    streaming_info   [2 heads] int32: blocks at the start and local blocks of a streaming head
    base_blockmask   [b, heads with a mask, q_blocks, k_blocks] bool
    return_attn_probs also returns lse [heads, total_q] (the original: [b, heads, rounded max_seqlen_q_]) and None

    Unlike the original: forward only, no dropout, deterministic always, any head dimension, queries without a listed
    key give zeros. A causal call whose kv_len - q_len is no multiple of 128 is refused: here blocks are aligned to
    positions. Streaming heads are for causal calls. head_mask_type is read on the host, and so are the lengths of a
    causal call with two cu_seqlens: where these are on a GPU, the call waits for it.
    """
    if p_dropout != 0:
        raise NotImplementedError(f"p_dropout={p_dropout}: only 0 is implemented")
    if exact_streaming:
        raise NotImplementedError("exact_streaming=True is not implemented: streaming heads are made of whole blocks")
    library, heads, kinds = library_of(q), q.shape[1], [int(kind) for kind in head_mask_type.tolist()]
    if len(kinds) != heads:
        raise ValueError(f"head_mask_type: want [{heads}], got [{len(kinds)}]")
    if min(kinds, default=0) < 0 and not is_causal:
        raise NotImplementedError("streaming heads (head_mask_type < 0) are for causal calls")
    offsets = _offsets(cu_seqlens_q, cu_seqlens_k)
    if is_causal and cu_seqlens_q is not cu_seqlens_k and bool((offsets % BLOCK != 0).any()):
        raise ValueError("is_causal: want kv_len - q_len of every sequence to be a multiple of 128")
    shape = (cu_seqlens_q.shape[0] - 1, heads, -(-max_seqlen_q_ // BLOCK), -(-max_seqlen_k_ // BLOCK))
    sparse = sum(kind > 0 for kind in kinds)
    if sparse > 0:
        want, got = [shape[0], sparse, *shape[2:]], None if base_blockmask is None else list(base_blockmask.shape)
        if got != want:
            raise ValueError(f"base_blockmask: want {want}, got {got}")
    lists = None
    if sparse == heads:
        lists = block_lists_of(base_blockmask != 0)
    elif any(kinds):
        lists = block_lists_of(_mask_of_heads(kinds, streaming_info, base_blockmask, shape, offsets // BLOCK, library))
    out = library.like((q.shape[0], heads, v.shape[2]))
    lse = library.empty((heads, q.shape[0]), "float32") if return_attn_probs else None
    scale = q.shape[2]**-0.5 if softmax_scale is None else softmax_scale
    library.kernels().block_sparse_attention((cu_seqlens_q, cu_seqlens_k, None, is_causal, BLOCK), q, k, v, lists,
                                             max(shape[2], 1), scale, out, lse, *_how(library, implementation))
    return (out, lse, None) if return_attn_probs else out
