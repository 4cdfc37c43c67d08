"""KbitWeight: a weight matrix of 2 to 5 bits, FP4, FP8 or floats, or a stack of them, one for each expert.

The tensors are those of include/dsv4_kbit.h; docs/formats.md says what their bytes mean.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from . import _core
from ._arrays import how, library_of

FORMATS = ("float", "fp8", "mxfp4", "nvfp4", "kbit")  # in the order of dsv4_weight_format
LAYOUTS = ("rows", "tiled", "image")
BLOCK = 32


@dataclass
class KbitWeight:
    """y[n] = sum_k w[n, k] x[k]. With a first axis for the experts, data and scale are stacks and scale2 is a list."""
    format: str
    n: int
    k: int
    data: Any
    scale: Any = None
    codebook: Any = None
    bits: int = 0
    scale2: Any = 1.0
    layout: str = "rows"
    e4m3: bool = field(default=False)  # the codebook is that of the name "e4m3"

    def fields(self):
        """What _core takes."""
        if self.format not in FORMATS or self.layout not in LAYOUTS:
            raise ValueError(f"format={self.format!r}, layout={self.layout!r}: want one of {FORMATS}, {LAYOUTS}")
        return (FORMATS.index(self.format), LAYOUTS.index(self.layout), self.bits, self.e4m3, self.n, self.k, self.data,
                self.scale, self.codebook, self.scale2)

    @property
    def experts(self):
        """Number of experts of a stack, else None."""
        return len(self.scale2) if isinstance(self.scale2, list) else None

    def expert(self, i):
        scale = None if self.scale is None else self.scale[i]
        return replace(self, data=self.data[i], scale=scale, scale2=self.scale2[i])

    def dequantize(self, dtype="float32", out=None):
        """[n, k], or [experts, n, k]."""
        library = library_of(self.data)
        if self.experts is not None:
            return library.stack([self.expert(i).dequantize(dtype) for i in range(self.experts)])
        out = library.empty((self.n, self.k), dtype) if out is None else out
        library.kernels().dequantize_kbit(self.fields(), out, *how(library))
        return out

    def repacked(self, layout):
        """The same codes in another layout, as a new weight."""
        library = library_of(self.data)
        if self.experts is not None:
            return stack_of([self.expert(i).repacked(layout) for i in range(self.experts)])
        to = replace(self, layout=layout)
        if layout == "tiled":
            tiles = -(-self.k // 64)
            to.data = library.empty((tiles, self.n, 2 * self.bits), "int32")
            to.scale = library.empty((tiles, self.n, 2), "uint8")
        elif layout == "image":
            to.data, to.scale = library.empty((_core.kbit_image_bytes(self.fields()),), "uint8"), None
        else:
            columns = {"kbit": self.k // BLOCK * self.bits}.get(self.format, self.k // 2)
            groups = self.k // (16 if self.format == "nvfp4" else BLOCK)
            to.data = library.empty((self.n, columns), "int32" if self.format == "kbit" else "uint8")
            to.scale = library.empty((self.n, groups), "uint8")
        library.kernels().repack_kbit(self.fields(), to.fields(), *how(library))
        return to


def stack_of(weights):
    """One stack of weights of equal format, shape and codebook."""
    library, first = library_of(weights[0].data), weights[0]
    scale = None if first.scale is None else library.stack([w.scale for w in weights])
    return replace(first, data=library.stack([w.data for w in weights]), scale=scale,
                   scale2=[float(w.scale2) for w in weights])


def create_codebook(name, k, like=None):
    """[2^k] f32 of "nf", "bnf", "e4m3", or "e2m1" with k = 4: a NumPy array, or one of the library of `like`."""
    if like is not None and library_of(like).compiling():
        from . import torch_ops
        return torch_ops.codebook(name, k, like)
    import numpy
    values = numpy.empty((2**k if 2 <= k <= 5 else 32,), numpy.float32)
    _core.kbit_codebook(name, k, values)
    return values if like is None else library_of(like).array(values, "float32")


def _parse(format):
    """"k3-e4m3" -> (3, "e4m3")"""
    bits, _, book = format[1:].partition("-")
    if not format.startswith("k") or bits not in ("2", "3", "4", "5"):
        raise ValueError(f"format={format!r}: want k2, k3, k4 or k5, with -nf, -bnf, -e4m3 or -e2m1")
    return int(bits), book or "e4m3"


def quantize_weight(weight, format="k3-e4m3", *, codebook=None, importance=None, search=True):
    """A KbitWeight of floats [n, k] or [experts, n, k]; k a multiple of 32.

    format      k2 .. k5, with the name of a codebook: -e4m3 (the default), -nf, -bnf, or k4-e2m1
    codebook    [2^K] f32 ascending, instead of a named one; it need not be symmetric
    importance  [k] f32 or [experts, k]: weights of the squared error of each column
    search      scales of least squared error; False: of the largest magnitude, as the reference has them
    """
    library = library_of(weight)
    if len(weight.shape) == 3:
        rows = [None] * weight.shape[0] if importance is None else list(importance)
        return stack_of([quantize_weight(weight[i], format, codebook=codebook, importance=rows[i], search=search)
                         for i in range(weight.shape[0])])
    bits, book = _parse(format)
    n, k = weight.shape
    if k % BLOCK != 0:
        raise ValueError(f"weight: {k} columns are not a multiple of {BLOCK}")
    values = create_codebook(book, bits, weight) if codebook is None else library.array(codebook, "float32")
    weight, data = library.packed(weight), library.empty((n, k // BLOCK * bits), "int32")
    scale, scale2 = library.empty((n, k // BLOCK), "uint8"), _core.kbit_tensor_scale(weight)
    _core.quantize_kbit(weight, values, bits, search, importance, scale2, data, scale, *how(library))
    return KbitWeight("kbit", n, k, data, scale, values, bits, scale2, e4m3=codebook is None and book == "e4m3")
