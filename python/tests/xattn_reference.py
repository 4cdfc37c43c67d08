"""XAttention and block-sparse attention in NumPy float64 by their definition, independent of the library's code."""

import numpy


def block_sums(q, k, stride, block=128, causal=True, norm=1.0):
    """q [n_q, h, d], k [n_kv, h_kv, d] -> [h, q_blocks, k_blocks]; queries end where keys end, if causal."""
    n_q, heads, d = q.shape
    n_kv, group = k.shape[0], heads // k.shape[1]
    first = n_kv - n_q if causal else 0
    first_block, per_block = first // block, block // stride
    q_blocks, k_blocks = (first + n_q - 1) // block - first_block + 1, -(-n_kv // block)
    sums = numpy.zeros((heads, q_blocks, k_blocks))
    for head in range(heads):
        rows = numpy.zeros((q_blocks * block, d))
        rows[first - first_block * block:][:n_q] = q[:, head]
        columns = numpy.zeros((k_blocks * block, d))
        columns[:n_kv] = k[:, head // group]
        rows = rows.reshape(-1, stride, d)[:, ::-1].reshape(-1, stride * d)
        scores = rows @ columns.reshape(-1, stride * d).T * (d**-0.5 / stride / norm)
        row = first_block * per_block + numpy.arange(len(rows))
        column = numpy.arange(scores.shape[1])
        hidden = (column * stride >= n_kv)[None] | (causal & (column[None] > row[:, None]))
        scores = numpy.where(hidden, -numpy.inf, scores)
        p = numpy.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        p[(row + 1) * stride <= first] = 0
        p[row * stride >= first + n_q] = 0
        sums[head] = p.reshape(q_blocks, per_block, k_blocks, per_block).sum((1, 3))
    return sums


def mask_of(sums, threshold, first_block=0, causal=True, sink=True):
    """The smallest set of largest blocks with the share `threshold` [h] of a row's mass; block 0 (the sink) and the
    diagonal are in it. Also the mass between the last block taken and the need, relative to the row: small where a tie decides."""
    heads, rows, columns = sums.shape
    mask = numpy.zeros(sums.shape, bool)
    for head in range(heads):
        for row in range(rows):
            visible = min(first_block + row + 1, columns) if causal else columns
            v = sums[head, row, :visible]
            kept = ({0} if sink else set()) | ({first_block + row} if causal else set())
            kept = {j for j in kept if j < visible}
            held = sum(v[j] for j in kept)
            for j in sorted(set(range(visible)) - kept, key=lambda j: (-v[j], j)):
                if held >= threshold[head] * v.sum():
                    break
                kept.add(j)
                held += v[j]
            mask[head, row, list(kept)] = True
    return mask


def attention(q, k, v, mask=None, causal=True, block=128, scale=None):
    """q [n_q, h, d], k, v [n_kv, h_kv, ..], mask [h, q_blocks, k_blocks] or None -> out [n_q, h, d_v], lse [h, n_q].
    Rows of the mask count from the first query's block of positions."""
    n_q, heads, d = q.shape
    n_kv, group = k.shape[0], heads // k.shape[1]
    first = n_kv - n_q if causal else 0
    position = first + numpy.arange(n_q)
    out, lse = numpy.zeros((n_q, heads, v.shape[2])), numpy.full((heads, n_q), -numpy.inf)
    for head in range(heads):
        logits = q[:, head] @ k[:, head // group].T * (d**-0.5 if scale is None else scale)
        seen = numpy.ones(logits.shape, bool)
        if causal:
            seen &= numpy.arange(n_kv)[None] <= position[:, None]
        if mask is not None:
            row, column = position // block - first // block, numpy.arange(n_kv) // block
            seen &= mask[head][row[:, None], column[None]]
        some = seen.any(-1)
        logits = numpy.where(seen, logits, -numpy.inf)
        top = numpy.where(some, logits.max(-1), 0)
        p = numpy.exp(logits - top[:, None])
        total = p.sum(-1)
        out[some, head] = (p @ v[:, head // group])[some] / total[some, None]
        lse[head, some] = numpy.log(total[some]) + top[some]
    return out, lse
