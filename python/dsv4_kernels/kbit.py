"""Products of 2 to 5 bit weights under the names, the order and the meaning of bitsandbytes' k-bit functions
(docs/spec/lowbit.md 1.3), and kbit_moe.

A packed weight is int32 codes with uint8 scales (absmax). Its shape says its layout:

    [N, K_dim/32 * k]               rows: what files have; no call has to convert it
    [ceil(K_dim/64), N, 2 k]        tiled, what repack_kbit() makes; N a multiple of 128
    one axis                        what the function takes under its name: rows in dequantize_kbit, repack_kbit and
                                    kbit_scalar_gemv, else tiled. More elements than needed may follow.

Stacked experts have one axis more in front. uint8 codes are a kernel image (docs/kernels/kbit_image.md), scales included.
CPU and CUDA tensors of every kind are taken; docs/kernels/kbit.md says which code multiplies them.

`out` gets the result and is returned. `workspace` is uint8 memory on the GPU for calls that take any
(kbit_linear_workspace and others say how much); the host takes none. k_chunks and max_M do nothing: the work is divided inside.
"""

import math

from . import _core
from ._arrays import how, library_of
from .kbit_weight import BLOCK, KbitWeight, create_codebook

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


def create_normal_float_codebook(k, device=None):
    """[2^k] f32: quantiles of a Gaussian. On `device` a torch tensor, without one a NumPy array."""
    return _codebook_on("nf", k, device)


def create_bnf_codebook(k, device=None):
    """[2^k] f32: least squared error for a Gaussian divided by the largest magnitude of its block of 32."""
    return _codebook_on("bnf", k, device)


def _codebook_on(name, k, device):
    if device is None:
        return create_codebook(name, k)
    import torch
    return create_codebook(name, k, torch.empty(0, device=device))


def quantize_kbit(A, k=4, codebook=None, absmax_format="e4m4"):
    """(packed, absmax, codebook) of A's elements in order, in blocks of 32: int32 and uint8 with one axis, one block of
    zeros longer than needed. The codebook is create_normal_float_codebook(k) unless one is given. To the bit what the
    reference gives; quantize_weight() searches better scales."""
    if absmax_format != "e4m4":
        raise ValueError(f"absmax_format={absmax_format!r}: only 'e4m4' is implemented")
    library = library_of(A)
    codebook = create_codebook("nf", k, A) if codebook is None else library.array(codebook, "float32")
    flat = library.packed(A).reshape(1, -1)
    blocks = -(-flat.shape[1] // BLOCK)
    packed, absmax = library.full(((blocks + 1) * k,), 0, "int32"), library.full((blocks + 1,), 0, "uint8")
    library.kernels().quantize_kbit(flat, codebook, k, False, None, 1.0, packed[:blocks * k].reshape(1, -1),
                                    absmax[:blocks].reshape(1, -1), *how(library))
    return packed, absmax, codebook


def dequantize_kbit(packed, absmax, codebook, k, n, dtype="float16", out=None):
    """The values of ceil(n / 32) blocks, with one axis. f32 scales are taken too."""
    library, blocks = library_of(packed), -(-n // BLOCK)
    data, scales = packed.reshape(1, -1)[:, :blocks * k], absmax.reshape(1, -1)[:, :blocks]
    if out is None:
        out = library.empty((blocks * BLOCK,), dtype)
    exact = library.is_dtype(absmax, "float32")
    unit = library.full((1, blocks), 0xb0, "uint8") if exact else scales  # 1 as E4M4
    values = library.empty((1, blocks * BLOCK), "float32") if exact else out.reshape(1, -1)
    weight = KbitWeight("kbit", 1, blocks * BLOCK, data, unit, library.array(codebook, "float32"), k)
    library.kernels().dequantize_kbit(weight.fields(), values, *how(library))
    if exact:
        out[...] = (values.reshape(-1, BLOCK) * scales.reshape(-1, 1)).reshape(-1)
    return out


def dequantize_kbit_tiled(packed, absmax, codebook, k, K_dim, N, dtype="float16", out=None):
    """[N, K_dim] of a tiled weight."""
    return _weight(packed, absmax, codebook, k, K_dim, N, "tiled").dequantize(dtype, out)


def repack_kbit(packed_flat, absmax_flat, K_dim, N, k):
    """(packed, absmax) of a weight [N, K_dim] in tiles, with one axis each."""
    weight = _weight(packed_flat, absmax_flat, None, k, K_dim, N, "rows")
    weight.codebook = create_codebook("nf", k, packed_flat)  # codes move whatever they stand for
    tiled = weight.repacked("tiled")
    return tiled.data.reshape(-1), tiled.scale.reshape(-1)


def tile_scales(scales):
    """Scales [N, groups] of an NVFP4 or MXFP4 weight, a byte each, as the tiles uint8 [ceil(N/128), ceil(groups/4), 512] that
    Blackwell's tensor cores and cuBLASLt read: row r and group g are byte (r % 32) 16 + (r / 32 % 4) 4 + g % 4 of tile
    [r / 128, g / 4]. Padding is zero."""
    library, (n, groups) = library_of(scales), scales.shape
    tiles = library.empty((-(-n // 128), -(-groups // 4), 512), "uint8")
    library.kernels().repack_scales(scales, tiles, False, *how(library))
    return tiles


def untile_scales(tiles, N, groups):
    """The inverse: uint8 [N, groups]."""
    library = library_of(tiles)
    rows = library.empty((N, groups), "uint8")
    library.kernels().repack_scales(rows, tiles, True, *how(library))
    return rows


def _weight(packed, absmax, codebook, k, K_dim, N, flat, scale2=1.0, e4m3=False, experts=None):
    """A KbitWeight, or a stack of `experts`; flat: the layout of arrays of one axis."""
    library, stack, axes = library_of(packed), () if experts is None else (experts,), len(packed.shape)
    blocks, tiles = -(-K_dim // BLOCK), -(-K_dim // (2 * BLOCK))
    shapes = {"rows": ((N, blocks * k), (N, blocks)), "tiled": ((tiles, N, 2 * k), (tiles, N, 2))}
    if library.is_dtype(packed, "uint8"):
        layout = "image"
        packed, absmax = (packed if experts is None else packed.reshape(experts, -1)), None
    else:
        inner = axes - len(stack)
        layout = flat if axes == 1 else {2: "rows", 3: "tiled"}.get(inner)
        if layout is None:
            raise ValueError(f"packed: want one axis, rows or tiles, got {list(packed.shape)}")
        shape, scales = (stack + part for part in shapes[layout])
        if axes == 1:
            for name, array, want in (("packed", packed, shape), ("absmax", absmax, scales)):
                if array.shape[0] < math.prod(want):
                    raise ValueError(f"{name}: want {math.prod(want)} elements of {list(want)}, got {array.shape[0]}")
            packed = packed[:math.prod(shape)].reshape(shape)
            absmax = absmax[:math.prod(scales)].reshape(scales)
    if experts is not None and not isinstance(scale2, list):
        scale2 = [scale2] * experts
    codebook = None if codebook is None else library.array(codebook, "float32")
    return KbitWeight("kbit", N, K_dim, packed, absmax, codebook, k, scale2, layout, e4m3)


def _multiply(name, A, weight, out, workspace=None, numerics="official", implementation=None):
    library = library_of(A)
    if library.compiling():
        from . import torch_ops
        result = torch_ops.linear(A, weight, name, numerics, implementation, A if out is None else out)
        return result if out is None else out.copy_(result)
    rows = A.reshape(-1, A.shape[-1])
    if out is None:
        out = library.like((*A.shape[:-1], weight.n))
    _core.kbit_linear(name, rows, weight.fields(), out.reshape(-1, weight.n),
                      *how(library, implementation, numerics, workspace))
    return out


def kbit_linear(A, B_packed, B_absmax, codebook, k, K_dim, N, out=None, workspace=None, *, scale2=1.0, e4m3=False,
                numerics="official", implementation=None):
    """[.., N] of A's dtype (or out's): A [.., K_dim] times the weight [N, K_dim]; any number of rows.

    scale2  a factor of the whole weight
    e4m3    the codebook is create_codebook("e4m3", k): a GPU has kernels that know it
    """
    weight = _weight(B_packed, B_absmax, codebook, k, K_dim, N, "tiled", scale2, e4m3)
    return _multiply("linear", A, weight, out, workspace, numerics, implementation)


def kbit_linear_workspace(M, K_dim, N, dtype, device):
    """uint8 memory that is enough for kbit_linear of these sizes, any k and any layout. Empty for a CPU."""
    import torch
    empty = lambda shape, kind: torch.empty(shape, dtype=kind, device=device)
    x, out, codebook = empty((M, K_dim), dtype), empty((M, N), dtype), empty((32,), torch.float32)
    bytes, tiles = 0, -(-K_dim // (2 * BLOCK))
    for k in (2, 3, 4, 5):  # tiles are converted to rows; rows need less
        data, scale = empty((tiles, N, 2 * k), torch.int32), empty((tiles, N, 2), torch.uint8)
        weight = _weight(data, scale, codebook[:2**k], k, K_dim, N, "tiled")
        bytes = max(bytes, _core.kbit_linear_workspace(x, weight.fields(), out, how(library_of(x))[0]))
    return empty((bytes,), torch.uint8)


def kbit_gemm_prod(A, B_packed, B_absmax, codebook, K_dim, N, k, k_chunks=1, *, out=None, workspace=None):
    """kbit_linear of a tiled weight."""
    weight = _weight(B_packed, B_absmax, codebook, k, K_dim, N, "tiled")
    return _multiply("gemm_prod", A, weight, out, workspace)


def kbit_scalar_gemv(A, B_packed, B_absmax, codebook, K_dim, N, k, *, out=None, workspace=None):
    """kbit_linear of a weight in rows, for up to 4 rows of A."""
    weight = _weight(B_packed, B_absmax, codebook, k, K_dim, N, "rows")
    return _multiply("scalar_gemv", A, weight, out, workspace)


def kbit_scalar_gemv_tiled(A, B_packed, B_absmax, codebook, K_dim, N, k, *, out=None, workspace=None):
    """kbit_linear of a tiled weight, for up to 4 rows of A."""
    rows = math.prod(A.shape[:-1])
    if rows > 4:
        raise ValueError(f"kbit_scalar_gemv_tiled: A has {rows} rows, want 1 to 4")
    weight = _weight(B_packed, B_absmax, codebook, k, K_dim, N, "tiled")
    return _multiply("gemm_prod", A, weight, out, workspace)


def _fields(weights):
    """What _core takes of a stack or a list of KbitWeight."""
    return [w.fields() for w in weights] if isinstance(weights, list) else weights.fields()


def _multiply_experts(name, A, weights, offsets, N, out, workspace=None, numerics="official", implementation=None):
    library = library_of(A)
    if library.compiling():
        from . import torch_ops
        result = torch_ops.expert_linear(A, weights, offsets, N, name, numerics, implementation, A if out is None else out)
        return result if out is None else out.copy_(result)
    out = library.like((A.shape[0], N)) if out is None else out
    _core.kbit_expert_linear(name, A, _fields(weights), offsets, out, *how(library, implementation, numerics, workspace))
    return out


def _stack(B_packed_all, B_absmax_all, codebook, k, K_dim, N, num_experts, scale2):
    if isinstance(B_packed_all, list):
        return B_packed_all
    return _weight(B_packed_all, B_absmax_all, codebook, k, K_dim, N, "tiled", scale2, experts=num_experts)


def kbit_expert_linear(A_concat, B_packed_all, B_absmax_all, codebook, expert_offsets, k, K_dim, N, num_experts, max_M,
                       out=None, workspace=None, *, scale2=1.0, numerics="official", implementation=None):
    """[rows, N]: rows expert_offsets[e] to expert_offsets[e + 1] of A_concat times the weight of expert e.

    expert_offsets  [num_experts + 1] int32, ascending from 0 to the rows of A_concat; experts may have no rows
    B_packed_all    as in kbit_linear with an axis for the experts, or a list of KbitWeight that may differ in format
                    and k; the arguments that describe a stack are then not read
    """
    weights = _stack(B_packed_all, B_absmax_all, codebook, k, K_dim, N, num_experts, scale2)
    return _multiply_experts("expert_linear", A_concat, weights, expert_offsets, N, out, workspace, numerics,
                             implementation)


def kbit_expert_linear_workspace(A_concat, B_packed_all, B_absmax_all, codebook, expert_offsets, k, K_dim, N, num_experts,
                                 max_M, out=None, *, scale2=1.0, numerics="official", implementation=None):
    """uint8 memory that is enough for this call; nothing is computed. Empty for a CPU."""
    weights = _stack(B_packed_all, B_absmax_all, codebook, k, K_dim, N, num_experts, scale2)
    library = library_of(A_concat)
    out = library.like((A_concat.shape[0], N)) if out is None else out
    size = _core.kbit_expert_linear_workspace(A_concat, _fields(weights), expert_offsets, out,
                                              how(library, implementation, numerics)[0])
    return library.empty((size,), "uint8")


def kbit_grouped_gemm(A_concat, B_packed_all, B_absmax_all, codebook, expert_offsets, K_dim, N, k, num_experts, max_M, *,
                      out=None, workspace=None):
    """kbit_expert_linear of tiled weights."""
    weights = _weight(B_packed_all, B_absmax_all, codebook, k, K_dim, N, "tiled", experts=num_experts)
    return _multiply_experts("grouped_gemm", A_concat, weights, expert_offsets, N, out, workspace)


def kbit_moe(x, gate, up, down, experts, expert_weights, *, activation="silu", limit=None, out=None, workspace=None,
             numerics="official", implementation=None):
    """[t, d]: sum_j expert_weights[t, j] * down_e(a(gate_e x) * up_e x) with e = experts[t, j], in ascending order of e.

    x               [t, d] f32, bf16 or f16
    gate, up, down  KbitWeight stacks of [i, d], [i, d] and [d, i], or lists of KbitWeight; formats may differ
    experts         [t, top_k] int32; expert_weights [t, top_k] f32
    activation      "silu", "gelu" or "gelu_tanh"
    limit           clamps the gate from above and up on both sides; None: no clamp

    Everything in between is f32; on a GPU the implementations "cuda_kbit" and "cuda_mma" round weights and the input of
    down to the dtype of x, and "sm90_image" (stacks in layout "image") the input of down to bf16, unless numerics is "exact".
    """
    library, number = library_of(x), _activation(activation)
    stacks = (gate, up, down)
    if library.compiling():
        from . import torch_ops
        result = torch_ops.moe(x, stacks, experts, expert_weights, activation, limit, numerics, implementation,
                               x if out is None else out)
        return result if out is None else out.copy_(result)
    out = library.like(x.shape) if out is None else out
    _core.kbit_moe(x, *map(_fields, stacks), experts, expert_weights, number, limit or 0.0, out,
                   *how(library, implementation, numerics, workspace))
    return out


def kbit_moe_workspace(x, gate, up, down, experts, expert_weights, *, activation="silu", limit=None, out=None,
                       numerics="official", implementation=None):
    """uint8 memory that is enough for this call; nothing is computed. Empty for a CPU."""
    library, number = library_of(x), _activation(activation)
    out = library.like(x.shape) if out is None else out
    size = _core.kbit_moe_workspace(x, *map(_fields, (gate, up, down)), experts, expert_weights, number, limit or 0.0, out,
                                    how(library, implementation, numerics)[0])
    return library.empty((size,), "uint8")


def _activation(name):
    if name not in ACTIVATIONS:
        raise ValueError(f"activation={name!r}: want one of {ACTIVATIONS}")
    return ACTIVATIONS.index(name)
