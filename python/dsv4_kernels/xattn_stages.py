"""The two stages of XAttention's scores as functions of their own, under the names, orders and defaults of
mit-han-lab/x-attention (docs/spec/xattention.md 1.2, 1.3): for code that calls them, and to look between them.

They are made of the array library's own products and sums, of any device, and hold the scores in memory: q_len kv_len /
stride^2 values a head, in f32 in the second stage. xattn_estimate() computes the same block sums in one kernel that never
stores a score.
"""

from ._arrays import library_of


def _divides(name, value, multiple, of):
    if value % multiple != 0:
        raise ValueError(f"{name}={value}: want a multiple of {of}={multiple}")


def flat_group_gemm_fuse_reshape(query_states, key_states, stride, chunk_start, chunk_end, is_causal=True):
    """Scores [b, heads, q_len / stride, kv_len / stride] of groups of `stride` tokens, unscaled, of the dtype of
    query_states: score[r, c] = sum over s of q[r stride + stride - 1 - s] . k[c stride + s].

    query_states [b, heads, q_len, d], key_states [b, kv_heads, kv_len, d]; lengths are multiples of stride

    Unlike the original: any such lengths, heads may share keys, and no score is left out: chunk_start, chunk_end and
    is_causal, by which the original skips tiles that the second stage hides, do nothing.
    """
    library = library_of(query_states)
    b, heads, queries, d = query_states.shape
    kv_heads, keys = key_states.shape[1], key_states.shape[2]
    if stride < 1:
        raise ValueError(f"stride={stride}: want a positive number")
    _divides("q_len", queries, stride, "stride")
    _divides("kv_len", keys, stride, "stride")
    if key_states.shape[0] != b or key_states.shape[3] != d or kv_heads == 0 or heads % kv_heads != 0:
        raise ValueError(f"key_states {list(key_states.shape)} do not fit query_states {list(query_states.shape)}")
    rows = library.concat([query_states[:, :, stride - 1 - s::stride] for s in range(stride)])
    columns = library.concat([key_states[:, :, s::stride] for s in range(stride)])
    rows = rows.reshape(b, kv_heads, heads // kv_heads, queries // stride, stride * d)
    scores = library.matmul(rows, columns[:, :, None].swapaxes(-1, -2))
    return scores.reshape(b, heads, queries // stride, keys // stride)


def softmax_fuse_block_sum(attn_weights_slice, reshaped_block_size, segment_size, chunk_start, chunk_end, real_q_len,
                           scale, is_causal=True):
    """Sums [b, heads, rows / block, columns / block] of the softmax over each row of scores [b, heads, rows, columns], of
    their dtype; block is reshaped_block_size, in rows of scores.

    scale        of the scores in the power of two: log2(e) / sqrt(d) / stride / norm
    chunk_start  the position of row 0 among the columns: row i sees columns up to chunk_start + i, if is_causal
    real_q_len   rows from this position on count nothing

    segment_size and chunk_end do nothing, as in the original, but for the former's multiples.
    """
    library, block = library_of(attn_weights_slice), reshaped_block_size
    b, heads, rows, columns = attn_weights_slice.shape
    _divides("rows", rows, block, "reshaped_block_size")
    _divides("columns", columns, segment_size, "segment_size")
    _divides("segment_size", segment_size, block, "reshaped_block_size")
    x = library.array(attn_weights_slice, "float32") * scale
    position = library.arange(rows)[:, None] + chunk_start
    if is_causal:
        hidden = library.arange(columns)[None, :] > position
        x = library.where(hidden, library.full((1,), float("-inf"), "float32"), x)
    p = library.exp2(x - library.amax(x))
    p = p / p.sum(-1)[..., None]
    p = library.where(position < real_q_len, p, library.full((1,), 0.0, "float32"))
    sums = p.reshape(b, heads, rows // block, block, columns // block, block).sum((3, 5))
    return library.cast(sums, attn_weights_slice)
