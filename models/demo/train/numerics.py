"""Number formats of DeepSeek-V4 and the three numeric modes that the model can run in.

A quantizer returns values on the grid of its format; the gradient passes straight through.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Mode:
    dtype: torch.dtype  # of activations between operators
    quant: bool         # weights, KV, indexer and linear inputs on their official grids
    exact: bool         # products are accumulated and kept in fp32 until the official rounding point


FLOAT = Mode(torch.float32, quant=False, exact=True)
TRAIN = Mode(torch.bfloat16, quant=False, exact=False)
TRAIN_QUANT = Mode(torch.bfloat16, quant=True, exact=False)
OFFICIAL = Mode(torch.bfloat16, quant=True, exact=True)


def pow2ceil(z: Tensor) -> Tensor:
    """Smallest power of two >= z, from the bits of a normal positive fp32."""
    bits = z.view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent << 23).view(torch.float32)


def e2m1(x: Tensor) -> Tensor:
    """Nearest of 0, .5, 1, 1.5, 2, 3, 4, 6 with ties to the even code; saturates."""
    a = x.abs().clamp(max=6.0)
    fine, middle, coarse = (a * 2).round() / 2, a.round(), (a / 2).round() * 2
    return torch.where(a < 2, fine, torch.where(a < 4, middle, coarse)).copysign(x)


def e4m3(x: Tensor) -> Tensor:
    return x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float()


def straight_through(x: Tensor, q: Tensor) -> Tensor:
    """Forward exactly q, backward the identity on x."""
    return q.detach().to(x.dtype) + (x - x.detach())


def s8(x: Tensor, group: int) -> Tensor:
    """S8 of the specification: e4m3 with one power-of-two scale per `group` values."""
    v = x.detach().float().unflatten(-1, (-1, group))
    scale = pow2ceil(v.abs().amax(-1, keepdim=True).clamp(min=1e-4) * (1 / 448))
    return straight_through(x, (e4m3(v / scale) * scale).flatten(-2))


def s4(x: Tensor, group: int = 32) -> Tensor:
    """S4 of the specification: e2m1 with one power-of-two scale per `group` values."""
    v = x.detach().float().unflatten(-1, (-1, group))
    scale = pow2ceil(v.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-126) * (1 / 6))
    return straight_through(x, (e2m1(v / scale) * scale).flatten(-2))


def fp8_scale(w: Tensor) -> Tensor:
    """Scale per 128x128 block of w [N,K] -> [N/128,K/128]."""
    blocks = w.detach().float().unflatten(-1, (-1, 128)).unflatten(-3, (-1, 128))
    return pow2ceil(blocks.abs().amax((-3, -1)).clamp(min=1e-4) * (1 / 448))


def fp8_weight(w: Tensor) -> Tensor:
    scale = fp8_scale(w).repeat_interleave(128, -2).repeat_interleave(128, -1)
    return straight_through(w, e4m3(w.detach() / scale) * scale)


def fp4_scale(w: Tensor) -> Tensor:
    """Scale per row and 32 columns of w [...,N,K] -> [...,N,K/32]."""
    amax = w.detach().float().unflatten(-1, (-1, 32)).abs().amax(-1)
    return pow2ceil(amax.clamp(min=6 * 2.0**-126) * (1 / 6))


def fp4_weight(w: Tensor) -> Tensor:
    scale = fp4_scale(w).repeat_interleave(32, -1)
    return straight_through(w, e2m1(w.detach() / scale) * scale)


def matmul(x: Tensor, w: Tensor, mode: Mode) -> Tensor:
    """x [...,K] times w [N,K] transposed; fp32 accumulation, result in the mode's dtype."""
    if mode.exact:
        return F.linear(x.float(), w.float()).to(mode.dtype)
    return F.linear(x, w.to(mode.dtype))


def rms(x: Tensor, weight: Tensor, mode: Mode) -> Tensor:
    """RMSNorm in fp32 with a single rounding at the end."""
    v = x.float()
    g = weight.bfloat16().float() if mode.quant else weight
    return (g * (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-6))).to(mode.dtype)


def rms_plain(x: Tensor, mode: Mode) -> Tensor:
    """Weightless RMS; the official code rounds every step to bf16."""
    if not mode.quant:
        v = x.float()
        return (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-6)).to(mode.dtype)
    mean = (x * x).float().mean(-1, keepdim=True).to(mode.dtype)
    return x * torch.rsqrt(mean + 1e-6)


def on_bf16_grid(w: Tensor, mode: Mode) -> Tensor:
    """fp32 copy of a weight that the checkpoint stores as bf16."""
    return w.bfloat16().float() if mode.quant else w
