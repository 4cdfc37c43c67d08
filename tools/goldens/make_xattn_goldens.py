#!/usr/bin/env python3
"""Golden XAttention block scores and masks, in numpy, after the published algorithm as it is run there.

    make_xattn_goldens.py --out tests/golden/xattn/xattn.safetensors

Follows the reference's data flow and not the engine's: keys repeated to all heads, padding to whole chunks, a chunk
loop over the queries, scores and block sums rounded to bf16, float64 selection with the first chunk's special case.
Nothing here comes from the engine's sources.
"""
import argparse
import json
import struct

import numpy as np

BLOCK = 128
LOG2E = 1.4426950408889634
# name: queries, keys, stride, chunk, tau of each head
CASES = {
    "one_chunk": (2048, 2048, 8, 2048, (0.9, 0.7)),
    "chunks": (2048, 2048, 16, 1024, (0.9, 0.5)),
    "offset": (1024, 3072, 8, 1024, (0.8, 0.95)),
    "padded": (1900, 1900, 4, 2048, (0.9, 0.3)),
}
HEADS, KV_HEADS, WIDTH = 2, 1, 8


def bf16(x):
    """Rounds float32 to bf16, to nearest even, as float32."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    bits = bits + 0x7FFF + ((bits >> 16) & 1)
    return (bits & 0xFFFF0000).astype(np.uint32).view(np.float32)


def padded(x, multiple):
    """x [heads, tokens, width] with zero tokens at the end."""
    rest = -x.shape[1] % multiple
    return np.concatenate([x, np.zeros((x.shape[0], rest, x.shape[2]), np.float32)], axis=1)


def downsampled_scores(q, k, stride):
    """[heads, rows, columns]: one antidiagonal of every stride x stride tile, rounded to bf16."""
    heads, width = q.shape[0], q.shape[2]
    flipped = q.reshape(heads, -1, stride, width)[:, :, ::-1].reshape(heads, -1, stride * width)
    return bf16(flipped @ k.reshape(heads, -1, stride * width).transpose(0, 2, 1))


def block_sums(scores, stride, first_row, real_rows):
    """Softmax over the columns up to a row's position, summed by block; rounded to bf16."""
    heads, rows, columns = scores.shape
    scale = np.float32(LOG2E / np.sqrt(WIDTH) / stride)
    position = first_row + np.arange(rows)[:, None]
    x = np.where(np.arange(columns)[None, :] <= position, scores * scale, np.float32(-1e6))
    p = np.exp2(x - x.max(axis=-1, keepdims=True))
    p = p / p.sum(axis=-1, keepdims=True)
    p = np.where(position < real_rows, p, 0).astype(np.float32)
    per_block = BLOCK // stride
    return bf16(p.reshape(heads, rows // per_block, per_block, columns // per_block, per_block).sum(axis=(2, 4)))


def minimal_set(v, forced, need):
    """Forced blocks, then the largest others, lower index first, while their mass is below `need`."""
    kept = set(forced)
    mass = sum(float(v[j]) for j in kept)
    for j in sorted(set(range(len(v))) - kept, key=lambda j: (-v[j], j)):
        if mass >= need:
            break
        kept.add(j)
        mass += float(v[j])
    return kept


def first_chunk_set(v, row, need):
    """The reference where a chunk starts at block 0: its mass lags by one block, and block 0 comes along."""
    kept, mass, last = {row}, float(v[row]), 0.0
    for n, j in enumerate(sorted(set(range(len(v))) - kept, key=lambda j: (-v[j], j))):
        if n > 0 and mass >= need:
            break
        kept.add(j)
        mass, last = mass + last, float(v[j])
    return kept | {0}


def run(q, k, stride, chunk, tau):
    """-> sums and two masks [heads, q_blocks, k_blocks]: the rule of later chunks everywhere; the reference's."""
    queries, keys = q.shape[1], k.shape[1]
    k = np.repeat(k, HEADS // KV_HEADS, axis=0)
    q, k = padded(q, chunk), padded(k, chunk)
    offset = (k.shape[1] - q.shape[1]) // BLOCK
    shape = (HEADS, q.shape[1] // BLOCK, k.shape[1] // BLOCK)
    sums, rule, reference = np.zeros(shape, np.float32), np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
    for begin in range(0, q.shape[1], chunk):
        current = offset + begin // BLOCK  # absolute block of the chunk's first row
        scores = downsampled_scores(q[:, begin : begin + chunk], k, stride)
        part = block_sums(scores, stride, current * BLOCK // stride, -(-keys // stride))
        for head in range(HEADS):
            for i in range(chunk // BLOCK):
                row, block = begin // BLOCK + i, current + i
                v = part[head, i, : block + 1].astype(np.float64)
                need = float(np.float32(tau[head])) * float(v.sum())
                sums[head, row, : block + 1] = v
                for j in minimal_set(v, {0, block}, need):
                    rule[head, row, j] = 1
                chosen = minimal_set(v, {0, block}, need) if current > 0 else first_chunk_set(v, block, need)
                for j in chosen:
                    reference[head, row, j] = 1
    rows, columns = -(-queries // BLOCK), -(-keys // BLOCK)
    return [x[:, :rows, :columns] for x in (sums, rule, reference)]


def write_safetensors(path, tensors):
    """tensors: name -> (dtype name, array)."""
    header, offset = {}, 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    rng = np.random.default_rng(2503)
    tensors = {}
    for name, (queries, keys, stride, chunk, tau) in CASES.items():
        # Keys drift slowly and queries follow some of them, so that few blocks hold most of the mass.
        topics = rng.standard_normal((keys // 100 + 1, WIDTH)) * 1.5
        k = topics[np.arange(keys) // 100][None] + 0.7 * rng.standard_normal((KV_HEADS, keys, WIDTH))
        wanted = topics[rng.integers(0, len(topics), queries // 60 + 1)][np.arange(queries) // 60]
        q = 1.5 * wanted[None] + rng.standard_normal((HEADS, queries, WIDTH))
        q, k = bf16(q.astype(np.float32)), bf16(k.astype(np.float32))
        sums, rule, reference = run(q, k, stride, chunk, tau)
        as_stored = lambda x: (x.transpose(1, 0, 2).copy().view(np.uint32) >> 16).astype(np.uint16)
        tensors[f"{name}.q"] = ("BF16", as_stored(q))
        tensors[f"{name}.k"] = ("BF16", as_stored(k))
        tensors[f"{name}.tau"] = ("F32", np.array(tau, np.float32))
        tensors[f"{name}.stride"] = ("I32", np.array([stride], np.int32))
        tensors[f"{name}.sums"] = ("F32", sums)
        tensors[f"{name}.mask"] = ("U8", rule)
        tensors[f"{name}.reference"] = ("U8", reference)
        print(f"{name}: density {rule.sum() / (sums > 0).sum():.3f}, reference {reference.sum() / (sums > 0).sum():.3f}")
    write_safetensors(parser.parse_args().out, tensors)


if __name__ == "__main__":
    main()
