#!/usr/bin/env python3
"""Recall of attention mass against density, for queries and keys of known structure.

    PYTHONPATH=build/python python3 tools/measure_xattn_recall.py     writes bench/results/xattn_recall.json

One causal prompt per structure, some heads each; blocks of 128. Every method orders the blocks of a query block, block 0
and the diagonal first; a density lists that share of the visible blocks of a head. Recall is the share of the softmax
mass of all queries in the listed blocks. Methods:

  true mass      by the mass itself: no order of blocks holds more
  XAttention S   by the share of the row's antidiagonal block sums that comes before a block (xattn_estimate)
  subsampling S  the same with q[r S] . k[c S]: one token of every group of S
  window         nearest blocks first
  random         random blocks

Structures (n tokens, d 128, logits about as large as in trained models; on a GPU if torch has one):

  needles     random queries and keys; every other run of 16 queries has one key that takes 3/4 of its mass
  phrases     the same with runs of 16 adjacent keys instead of one
  streaming   mass falls off with distance over some hundred tokens, and the first four tokens are a sink
  stripes     some tokens are seen by all later queries (vertical stripes)
  topics      runs of keys share a topic, and runs of queries follow one of the earlier topics
"""

import json
import math
import pathlib
import sys

import numpy

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENS, HEADS, D, BLOCK = 16384, 4, 128, 128
DENSITIES = [0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8]


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(numpy.float32)


def unit(x):
    return x / numpy.linalg.norm(x, axis=-1, keepdims=True)


def planted(rng, keys):
    """Every other run of 16 queries follows a run of `keys` keys: logits of ln(3 n / keys) over a background of logits
    with variance 1."""
    q, k = normal(rng, TOKENS, HEADS, D), normal(rng, TOKENS, HEADS, D)
    for head in range(HEADS):
        for begin in range(256, TOKENS, 32):
            first = rng.integers(0, begin - keys)
            along = unit(normal(rng, D))
            k[first:first + keys, head] = 0.3 * normal(rng, keys, D) + math.sqrt(D) * along
            run = slice(begin, begin + 16)
            q[run, head] += along * (math.log(3 * begin / keys) + 0.5 - q[run, head] @ along)[:, None]
    return q, k


def needles(rng):
    return planted(rng, 1)


def phrases(rng):
    return planted(rng, 16)


def streaming(rng):
    """Rotating features: q_i . k_j = sum over frequencies of cos(w (i - j)), a peak at i = j."""
    position = numpy.arange(TOKENS)[:, None]
    frequency = numpy.geomspace(0.3, 0.0005, D // 2)[None]
    turn = numpy.concatenate([numpy.cos(position * frequency), numpy.sin(position * frequency)], 1).astype(numpy.float32)
    q, k = (numpy.repeat(turn[:, None], HEADS, 1) * 4.2 + 0.5 * normal(rng, TOKENS, HEADS, D) for _ in range(2))
    sink = unit(normal(rng, HEADS, D))
    q += 5 * sink[None]
    k[:4] += 12 * sink[None]
    return q, k


def stripes(rng):
    q, k = normal(rng, TOKENS, HEADS, D), normal(rng, TOKENS, HEADS, D)
    common = unit(normal(rng, HEADS, D))
    q += 6 * common[None]
    for head in range(HEADS):
        seen = rng.choice(TOKENS, TOKENS // 160, replace=False)
        k[seen, head] += 13 * common[head]
    return q, k


def topics(rng):
    topics_of = unit(normal(rng, TOKENS // 64, D))
    run = numpy.arange(TOKENS) // 64
    k = normal(rng, TOKENS, HEADS, D) + 8 * topics_of[run][:, None]
    q = normal(rng, TOKENS, HEADS, D)
    for head in range(HEADS):
        for begin in range(0, TOKENS, 64):
            q[begin:begin + 64, head] += 8 * topics_of[rng.integers(0, begin // 64 + 1)]
    return q, k


STRUCTURES = {"needles": needles, "phrases": phrases, "streaming": streaming, "stripes": stripes, "topics": topics}


def subsampled_sums(q, k, stride):
    """[h, blocks, blocks]: softmax over every stride-th key, for every stride-th query."""
    per_block, blocks = BLOCK // stride, TOKENS // BLOCK
    sums = numpy.zeros((HEADS, blocks, blocks))
    for head in range(HEADS):
        logits = q[::stride, head] @ k[::stride, head].T * D**-0.5
        logits[numpy.triu(numpy.ones(logits.shape, bool), 1)] = -numpy.inf
        p = numpy.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        sums[head] = p.reshape(blocks, per_block, blocks, per_block).sum((1, 3))
    return sums


def orders(q, k, rng):
    """{method: critical values [h, blocks, blocks]}: smaller is listed earlier, below 0 always."""
    import dsv4_kernels
    from dsv4_kernels.xattn_calibrate import device_array
    from dsv4_kernels.xattn_mass import block_mass, critical_thresholds
    on_device = [device_array(x) for x in (q, k)]
    mass = block_mass(*on_device, BLOCK)
    found = {"true mass": critical_thresholds(mass)}
    for stride in (8, 16):
        sums, _ = dsv4_kernels.xattn_estimate(*(x.swapaxes(0, 1)[None] for x in on_device), BLOCK, stride)
        found[f"XAttention S {stride}"] = critical_thresholds(sums[0])
    found["subsampling S 8"] = critical_thresholds(subsampled_sums(q, k, 8))
    kept = found["true mass"]
    row, column = numpy.indices(kept.shape[1:])
    near = numpy.broadcast_to((row - column).astype(float), kept.shape)
    for name, values in (("window", near), ("random", rng.random(kept.shape))):
        found[name] = numpy.where(kept < 0, kept, numpy.where(numpy.isfinite(kept), values, numpy.inf))
    return mass, found


def e4m3(x):
    """Nearest e4m3 values, ties to even, at most 448."""
    exponent = numpy.maximum(numpy.floor(numpy.log2(numpy.maximum(numpy.abs(x), 2.0**-9))), -6)
    step = numpy.exp2(exponent - 3)
    return numpy.clip(numpy.round(x / step) * step, -448, 448).astype(numpy.float32)


def fp8_agreement(q, k, critical, stride, density=0.2):
    """Of the masks at the threshold of this density, as they are and from operands in e4m3: blocks in both / in either.
    Sums are in float32; the tensor cores' own have 13 bits."""
    import dsv4_kernels
    from dsv4_kernels.xattn_calibrate import device_array
    from dsv4_kernels.xattn_mass import critical_thresholds
    states = [device_array(e4m3(x)).swapaxes(0, 1)[None] for x in (q, k)]
    rounded = critical_thresholds(dsv4_kernels.xattn_estimate(*states, BLOCK, stride)[0][0])
    visible = numpy.isfinite(critical)
    threshold = numpy.quantile(critical[visible], density)
    masks = [(values < threshold) & visible for values in (critical, rounded)]
    return float((masks[0] & masks[1]).sum() / (masks[0] | masks[1]).sum())


def measure():
    from dsv4_kernels.xattn_mass import curves
    result, fp8 = {}, {}
    for name, make in STRUCTURES.items():
        rng = numpy.random.default_rng(22)
        q, k = make(rng)
        mass, found = orders(q, k, rng)
        result[name] = {
            method: [float(numpy.mean([numpy.interp(density, c.density, c.recall) for c in curves([(critical, mass)])]))
                     for density in DENSITIES] for method, critical in found.items()}
        fp8[name] = {str(stride): fp8_agreement(q, k, found[f"XAttention S {stride}"], stride) for stride in (8, 16)}
        print(name, fp8[name], {m: [round(x, 3) for x in r] for m, r in result[name].items()}, file=sys.stderr)
    return {"tokens": TOKENS, "heads": HEADS, "head_dim": D, "block": BLOCK, "densities": DENSITIES, "recall": result,
            "fp8_agreement": fp8}


if __name__ == "__main__":
    (ROOT / "bench/results/xattn_recall.json").write_text(json.dumps(measure(), indent=1) + "\n")
