#!/usr/bin/env python3
"""Golden k-bit weights: codebooks, planes and scales as docs/spec/lowbit.md 1.2 describes them, in numpy and scipy.

    make_kbit_goldens.py --out tests/golden/kbit/kbit.safetensors

Nothing here is derived from the engine's sources. Every step is float32 where it is in the reference.
"""
import argparse

import numpy as np
from safetensors.numpy import save_file
from scipy.stats import norm

BLOCK = 32
COLUMNS = 256
F32 = np.float32

# docs/spec/lowbit.md 1.2: the positive levels of BNF-k.
BNF = {
    2: ".1964 .6642",
    3: ".1018 .3141 .5583 .8827",
    4: ".0499 .1509 .2551 .3652 .4846 .6179 .7739 .9686",
    5: ".0239 .0718 .1201 .1692 .2193 .2707 .3239 .3791 .4369 .4977 .5625 .6321 .7078 .7913 .8850 .9920",
}


def nf_codebook(bits):
    """c_i = fl32(fl32(Q((i + .5) / n)) / fl32(Q((n - .5) / n)))"""
    n = 2**bits
    quantiles = norm.ppf((np.arange(n) + 0.5) / n).astype(F32)
    return quantiles / quantiles[-1]


def bnf_codebook(bits):
    positive = np.array(BNF[bits].split(), dtype=F32)
    return np.concatenate([-positive[::-1], positive])


def encode_e4m4(v):
    """u = floor(log2 v), e = clamp(u + 11, 0, 15), m by rint (ties to even), clamped to 15: no carry."""
    if v <= 0:
        return 0
    v = float(v)
    u = int(np.frexp(v)[1]) - 1  # floor(log2 v), exact
    e = min(max(u + 11, 0), 15)
    m = np.rint((v / 2.0**u - 1) * 16) if e > 0 else np.rint(v / 2.0**-10 * 16)
    return e << 4 | int(min(max(m, 0), 15))


def quantize_block(x, codebook):
    """-> codes [32], scale byte. Ascending scan, the first strict minimum of |t - c| in float32."""
    absmax = np.abs(x).max()
    t = x / max(absmax, F32(1e-8))
    codes, nearest = np.zeros(BLOCK, dtype=np.uint32), np.full(BLOCK, np.inf, dtype=F32)
    for i, c in enumerate(codebook):
        distance = np.abs(t - c)
        codes = np.where(distance < nearest, np.uint32(i), codes)
        nearest = np.minimum(nearest, distance)
    return codes, encode_e4m4(absmax)


def pack(codes, bits):
    """Bit i of word j is bit j of code i."""
    position = np.arange(BLOCK, dtype=np.uint32)
    return [np.bitwise_or.reduce((codes >> np.uint32(j) & 1) << position) for j in range(bits)]


def rows(rng, codebook):
    """One row per kind of block."""
    blocks = COLUMNS // BLOCK
    noise = rng.standard_normal((blocks, BLOCK)).astype(F32)
    yield noise * F32(0.02)
    yield noise[::-1] * F32(2)
    yield rng.standard_t(5, (blocks, BLOCK)).astype(F32) * F32(0.05)
    # Ties: halfway between neighbors, at absmax 1, and the adjacent floats on both sides.
    halfway = (codebook[:-1] + codebook[1:]) / F32(2)
    ties = np.stack([halfway, np.nextafter(halfway, F32(-9)), np.nextafter(halfway, F32(9))]).ravel()
    ties = np.resize(ties, (blocks, BLOCK)).astype(F32)
    ties[:, 0] = np.where(np.arange(blocks) % 2, 1, -1)
    yield ties
    zeros = np.zeros((blocks, BLOCK), dtype=F32)
    zeros[1] = -0.0
    zeros[2, 7] = 0.25
    zeros[3, 31] = -0.25
    yield zeros
    # Scales below 2^-10, below the smallest step, and blocks below the floor of 1e-8.
    size = np.logspace(-3, -10, blocks).astype(F32)
    yield noise / np.abs(noise).max(1, keepdims=True) * size[:, None]
    # The largest magnitude at the top of the format and just below powers of two (no carry).
    edge = np.array([31, 30.9, 30.5, 29.99, 15.99, 0.9999, 0.984375, 0.0009765], dtype=F32)
    edges = noise / (F32(1.5) * np.abs(noise).max(1, keepdims=True)) * edge[:, None]
    edges[:, 11] = np.where(np.arange(blocks) % 2, edge, -edge)
    yield edges
    # Scales halfway between two mantissas: ties to even.
    half = F32(2.0 ** -3) * (1 + (np.arange(blocks, dtype=F32) + F32(0.5)) / 16)
    halves = noise / (2 * np.abs(noise).max(1, keepdims=True)) * half[:, None]
    halves[:, 5] = half
    yield halves


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    tensors = {}
    for kind, make in (("nf", nf_codebook), ("bnf", bnf_codebook)):
        for bits in (2, 3, 4, 5):
            codebook = make(bits)
            x = np.stack([row.astype(F32).ravel() for row in rows(np.random.default_rng(bits), codebook)])
            planes, scales = [], []
            for block in x.reshape(-1, BLOCK):
                codes, scale = quantize_block(block, codebook)
                planes += pack(codes, bits)
                scales.append(scale)
            name = f"{kind}{bits}"
            tensors[name + ".codebook"] = codebook
            tensors[name + ".x"] = x
            tensors[name + ".planes"] = np.array(planes, dtype=np.uint32).view(np.int32).reshape(len(x), -1)
            tensors[name + ".scales"] = np.array(scales, dtype=np.uint8).reshape(len(x), -1)
    save_file(tensors, args.out)


if __name__ == "__main__":
    main()
