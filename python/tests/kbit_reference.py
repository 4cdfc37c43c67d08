"""The formats of docs/spec/lowbit.md 1.2 and docs/formats.md in NumPy and float64, written from their text alone."""

import numpy

# Positive halves of the normal-float codebooks as bit patterns of float32 (docs/spec/lowbit.md 1.2).
NF = {
    2: "3E8DD21A 3F800000",
    3: "3DD20129 3EA32005 3F1409F5 3F800000",
    4: "3D2C6C36 3E0265AD 3E5D2107 3E9F2EE8 3ED56949 3F0ACE38 3F35233B 3F800000",
    5: "3C950060 3D5FF631 3DBB691D 3E04052D 3E2B36BA 3E539BDB 3E7D9849 3E94D4A9 3EAC39A3 3EC56BF3 3EE10F82 3F001198 "
       "3F122CF2 3F288359 3F4731DC 3F800000",
}
E2M1 = numpy.array([0, .5, 1, 1.5, 2, 3, 4, 6])


def nf(k):
    half = numpy.array([int(word, 16) for word in NF[k].split()], numpy.uint32).view(numpy.float32)
    return numpy.concatenate([-half[::-1], half])


def decode_e4m4(byte):
    e, m = byte.astype(int) >> 4, byte.astype(int) & 15
    return numpy.where(e > 0, numpy.exp2(e - 11.0) * (1 + m / 16), 2.0**-10 * m / 16)


def encode_e4m4(v):
    u = numpy.floor(numpy.log2(numpy.where(v > 0, v, 1)))
    e = numpy.clip(u + 11, 0, 15)
    m = numpy.where(e > 0, numpy.rint((v / numpy.exp2(u) - 1) * 16), numpy.rint(v / 2.0**-10 * 16))
    return numpy.where(v > 0, e * 16 + numpy.clip(m, 0, 15), 0).astype(numpy.uint8)


def quantize(x, k, codebook):
    """The reference quantizer: x [blocks, 32] f32 -> codes, scale bytes."""
    absmax = numpy.abs(x).max(1)
    t = x / numpy.maximum(absmax, numpy.float32(1e-8))[:, None]
    codes = numpy.abs(t[..., None] - codebook).argmin(-1)  # the first of equal distances
    return codes, encode_e4m4(absmax.astype(float))


def planes_of(codes, k):
    """codes [blocks, 32] -> int32 [blocks, k]"""
    bits = (codes[:, None, :] >> numpy.arange(k)[None, :, None]) & 1
    words = (bits.astype(numpy.uint64) << numpy.arange(32, dtype=numpy.uint64)).sum(-1)
    return words.astype(numpy.uint32).view(numpy.int32)


def codes_of(planes):
    """int32 [.., k] -> codes [.., 32]"""
    words = numpy.ascontiguousarray(planes).view(numpy.uint32)
    bits = (words[..., None] >> numpy.arange(32, dtype=numpy.uint32)) & 1
    return (bits << numpy.arange(planes.shape[-1], dtype=numpy.uint32)[:, None]).sum(-2)


def kbit_values(planes, scales, codebook, k, scale2=1.0):
    """[n, blocks * k], [n, blocks] -> [n, blocks * 32] float64"""
    n, blocks = scales.shape
    codes = codes_of(planes.reshape(n, blocks, k))
    return (codebook.astype(float)[codes] * decode_e4m4(scales)[..., None]).reshape(n, -1) * scale2


def tiled(planes, scales, k):
    """Rows to the tiled layout: words [k_pad/64, n, 2, k]."""
    n, blocks = scales.shape
    tiles = -(-blocks // 2)
    words, bytes = numpy.zeros((tiles, n, 2, k), numpy.int32), numpy.zeros((tiles, n, 2), numpy.uint8)
    for b in range(blocks):
        words[b // 2, :, b % 2] = planes.reshape(n, blocks, k)[:, b]
        bytes[b // 2, :, b % 2] = scales[:, b]
    return words.reshape(tiles, n, 2 * k), bytes


def e2m1_values(pairs):
    """Bytes, the low nibble first -> values"""
    codes = numpy.stack([pairs & 15, pairs >> 4], -1).reshape(*pairs.shape[:-1], -1)
    return numpy.where(codes & 8, -1.0, 1.0) * E2M1[codes & 7]


def decode_e4m3(byte):
    s, e, m = byte.astype(int) >> 7, byte.astype(int) >> 3 & 15, byte.astype(int) & 7
    return numpy.where(s, -1.0, 1.0) * numpy.where(e > 0, numpy.exp2(e - 7.0) * (1 + m / 8), 2.0**-6 * m / 8)


def activation(name, v):
    from math import erf, pi, sqrt
    if name == "silu":
        return v / (1 + numpy.exp(-v))
    if name == "gelu":
        return v * (1 + numpy.vectorize(erf, otypes=[float])(v / sqrt(2))) / 2
    return v * (1 + numpy.tanh(sqrt(2 / pi) * (v + 0.044715 * v**3))) / 2


def moe(x, gate, up, down, experts, expert_weights, name, limit=None):
    """gate, up [e, i, d], down [e, d, i] float64 -> [t, d]"""
    out = numpy.zeros((x.shape[0], down.shape[1]))
    for t in range(x.shape[0]):
        for j, e in enumerate(experts[t]):
            g, u = gate[e] @ x[t], up[e] @ x[t]
            if limit is not None:
                g, u = numpy.minimum(g, limit), numpy.clip(u, -limit, limit)
            out[t] += expert_weights[t, j] * (down[e] @ (activation(name, g) * u))
    return out
