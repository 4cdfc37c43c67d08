"""Packed caches by their definition, and attention in float64, independent of the library's code.

Entries that no index names, padding and gaps are NaN, so a kernel that reads them fails. `xp` is numpy or torch."""

import numpy

NOPE, GROUP, ROPE = {512: 448, 576: 512}, {512: 64, 576: 128}, 64
ROW_BYTES = {512: 584, 576: 656}


def e4m3_values():
    """[256] float32: sign, 4 bits of exponent (bias 7), 3 of mantissa; 0x7f and 0xff are NaN."""
    codes = numpy.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    size = numpy.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0**(exponent - 7))
    size[codes & 127 == 127] = numpy.nan
    return numpy.where(codes > 127, -size, size).astype(numpy.float32)


def bf16_bits(x):
    """Nearest bf16 of float32, ties to even, as uint16."""
    bits = x.astype(numpy.float32).view(numpy.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)


def bf16_values(bits):
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)


class Cache:
    """A paged pool of packed entries: pages [num_pages, stride] uint8 as the library reads them, rows
    [num_pages * page, d] float32 as they decode. Rows not in `named` (all: None) are NaN."""

    def __init__(self, rng, d, num_pages, page, named=None, extra_stride=0):
        self.d, self.page, self.num_pages = d, page, num_pages
        n, nope, groups = num_pages * page, NOPE[d], NOPE[d] // GROUP[d]
        keep = numpy.ones(n, bool) if named is None else numpy.isin(numpy.arange(n), named)
        codes = rng.integers(0, 127, (n, nope), numpy.uint8) | rng.integers(0, 2, (n, nope), numpy.uint8) << 7
        codes[~keep] = 0x7f
        rope = bf16_bits(rng.standard_normal((n, ROPE), numpy.float32) / 10)
        rope[~keep] = 0x7fc0
        if d == 512:
            stored = rng.integers(116, 119, (n, 8), numpy.uint8)  # 2^-11 .. 2^-9; the last is padding
            stored[~keep] = 0xff
            scales = numpy.where(keep[:, None], 2.0**(stored[:, :groups] % 255 - 127.0), numpy.nan)
        else:  # any float32, as written by serving engines
            scales = (rng.uniform(0.5, 2, (n, groups)) * 2.0**-10).astype(numpy.float32)
            scales[~keep] = numpy.nan
            stored = scales.view(numpy.uint8)
        decoded = e4m3_values()[codes].reshape(n, groups, -1) * scales.astype(numpy.float32)[:, :, None]
        self.rows = numpy.concatenate([decoded.reshape(n, nope), bf16_values(rope)], 1)
        self.pages = self._layout(codes, rope.view(numpy.uint8).reshape(n, 2 * ROPE), stored, extra_stride)

    def _layout(self, codes, rope, scales, extra_stride):
        def paged(*parts):
            return numpy.concatenate(parts, 1).reshape(self.num_pages, -1)
        if self.d == 512:  # rows of a page, then their scales
            bytes_ = numpy.concatenate([paged(codes, rope), paged(scales)], 1)
            stride = -(-bytes_.shape[1] // 576) * 576
        else:
            bytes_ = paged(codes, scales, rope)
            stride = bytes_.shape[1]
        pages = numpy.full((self.num_pages, stride + extra_stride), 0x7f, numpy.uint8)
        pages[:, :bytes_.shape[1]] = bytes_
        return pages

    def shape_and_strides(self):
        """Shape and strides of the [num_pages, page, 1, bytes] view that the interface takes."""
        width = ROW_BYTES[self.d]
        return (self.num_pages, self.page, 1, width), (self.pages.shape[1], width, width, 1)


def attention(xp, q, keys, valid, scale, d_v, sink=None):
    """q [.., h, d], keys [.., n, d], valid [.., n], sink [h], all float64; returns out [.., h, d_v] and lse,
    max_logits [.., h], with 0, +inf, -inf where no key is valid."""
    keys = xp.where(valid[..., None], keys, xp.zeros_like(keys))
    z = scale * (q @ xp.swapaxes(keys, -1, -2))
    z = xp.where(valid[..., None, :], z, xp.full_like(z, -numpy.inf))
    largest = xp.amax(z, -1)
    some = xp.isfinite(largest)
    shift = xp.where(some, largest, xp.zeros_like(largest))
    weights = xp.exp(z - shift[..., None])
    total = xp.sum(weights, -1)
    whole = total if sink is None else total + xp.exp(sink - shift)
    share = xp.where(some, 1 / xp.where(some, whole, xp.ones_like(whole)), xp.zeros_like(whole))
    out = (weights @ keys[..., :d_v]) * share[..., None]
    lse = xp.where(some, xp.log(xp.where(some, total, xp.ones_like(total))) + shift,
                   xp.full_like(shift, numpy.inf))
    return out, lse, largest


def select(ids, lengths, num_rows):
    """ids [b, s_q, n], lengths [b] or None: (ids to read, mask of the valid ones)."""
    valid = (ids >= 0) & (ids < num_rows)
    if lengths is not None:
        valid &= numpy.arange(ids.shape[2])[None, None] < lengths[:, None, None]
    return numpy.where(valid, ids, 0), valid


def close(got, want, absolute, relative, cosine):
    """A description of the difference, or None. got, want: float64 numpy arrays."""
    for special in (numpy.isnan, numpy.isposinf, numpy.isneginf):
        if not numpy.array_equal(special(got), special(want)):
            return f"{special.__name__} at other positions"
    finite = numpy.isfinite(want)
    got, want = got[finite], want[finite]
    error = numpy.abs(got - want)
    wrong = (error > absolute) & (error > relative * numpy.abs(want))
    if wrong.any():
        worst = numpy.argmax(numpy.where(wrong, error, 0))
        return f"{wrong.sum()} of {wrong.size} elements, for example {got[worst]} instead of {want[worst]}"
    squares = (got * got + want * want).sum()
    difference = 0 if squares == 0 else 1 - 2 * (got * want).sum() / squares
    return f"cosine difference {difference}" if difference > cosine else None
