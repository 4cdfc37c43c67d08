"""E4M4 scale bytes and their values (docs/spec/lowbit.md 1.2): 4 bits of exponent, 4 of mantissa, no sign.

    byte e m:  2^(e - bias) (1 + m / 16),  with e = 0  2^(1 - bias) m / 16
"""

from ._arrays import library_of


def decode_absmax_e4m4(encoded, bias=11):
    """uint8 of any shape -> f32."""
    import numpy
    byte = numpy.arange(256)
    e, m = byte >> 4, (byte & 15) / 16
    values = numpy.where(e > 0, numpy.exp2(e - float(bias)) * (1 + m), 2.0**(1 - bias) * m).astype("float32")
    library = library_of(encoded)
    return library.take(library.array(values, "float32"), encoded)


def encode_absmax_e4m4(absmax, bias=11):
    """f32 of any shape -> uint8. The nearest mantissa of the value's octave, ties to even, never carried into the exponent;
    0 for what is not positive. As in the reference, values of 2^(16 - bias) and more get the byte of a smaller one:
    quantize_kbit refuses them, quantize_weight scales the weight."""
    library = library_of(absmax)
    half, exponent = library.frexp(absmax)  # half in [0.5, 1)
    octave = exponent + (bias - 1)
    e = octave.clip(0, 15)
    normal, small = library.round(half * 32 - 16), library.round(absmax * 2.0**(bias + 3))
    # Beyond the last octave the mantissa is that of the value's own octave, which is what wraps.
    byte = e * 16 + library.where(octave > 0, normal, small).clip(0, 15)
    return library.bytes(library.where(absmax > 0, byte, 0))
