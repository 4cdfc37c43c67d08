"""Attention of one layer: shared K=V, window, compressed branch, lightning indexer, sinks."""

import math

import torch
from torch import Tensor, nn

from config import Config
from numerics import (Mode, fp8_weight, matmul, on_bf16_grid, rms, rms_plain, s4, s8)


class Weight(nn.Module):
    """One matrix [out,in]; `fp8`: whether the checkpoint stores it as 128x128-scaled e4m3."""

    def __init__(self, out: int, fan_in: int, fp8: bool = True, gain: float = 1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out, fan_in) * (gain * fan_in**-0.5))
        self.fp8 = fp8

    def stored(self, mode: Mode) -> Tensor:
        if not mode.quant:
            return self.weight
        return fp8_weight(self.weight) if self.fp8 else on_bf16_grid(self.weight, mode)


class Norm(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


def lin8(x: Tensor, w: Weight, mode: Mode) -> Tensor:
    """FP8 linear: inputs per token and 128 channels, weights per 128x128 block."""
    return matmul(s8(x, 128) if mode.quant else x, w.stored(mode), mode)


def rope_frequencies(c: Config, ratio: int) -> Tensor:
    """f_i, i < rd/2, in fp32; compressed layers use the long base with YaRN."""
    i = torch.arange(0, c.rd, 2, dtype=torch.float32)
    if ratio == 0:
        return 1.0 / (c.theta ** (i / c.rd))
    f = 1.0 / (c.compress_theta ** (i / c.rd))

    def border(beta: float) -> float:
        turns = math.log(c.yarn_original / (beta * 2 * math.pi))
        return c.rd * turns / (2 * math.log(c.compress_theta))

    low = max(math.floor(border(c.beta_fast)), 0)
    high = min(math.ceil(border(c.beta_slow)), c.rd - 1)
    ramp = ((torch.arange(c.rd // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return f / c.yarn_factor * ramp + f * (1 - ramp)


def rotate(x: Tensor, angle: Tensor, sign: float = 1.0) -> Tensor:
    """RoPE on the last dims of x in adjacent pairs; angle [T,rd/2] broadcasts over heads."""
    rd = 2 * angle.shape[-1]
    plain, tail = x[..., :-rd], x[..., -rd:].float().unflatten(-1, (-1, 2))
    if x.dim() == 4:
        angle = angle[:, None]  # x is [B,T,H,d]
    cos, sin = angle.cos(), sign * angle.sin()
    a, b = tail[..., 0], tail[..., 1]
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return torch.cat((plain, turned.to(x.dtype)), -1)


def hadamard(n: int) -> Tensor:
    """H_n / sqrt(n) in Sylvester order."""
    h = torch.ones(1, 1)
    while h.shape[0] < n:
        h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)))
    return h * n**-0.5


def kv_grid(k: Tensor, rd: int, mode: Mode) -> Tensor:
    """Rounds to the KV cache format: all but the rotated dims as e4m3 with a scale per 64."""
    return torch.cat((s8(k[..., :-rd], 64), k[..., -rd:]), -1) if mode.quant else k


class Compressor(nn.Module):
    def __init__(self, c: Config, ratio: int, size: int):
        super().__init__()
        self.ratio, self.size = ratio, size
        width = size * (2 if ratio == 4 else 1)
        self.wkv = Weight(width, c.D, fp8=False)
        self.wgate = Weight(width, c.D, fp8=False, gain=0.5)
        self.ape = nn.Parameter(torch.zeros(ratio, width))
        self.norm = Norm(size)

    def forward(self, x: Tensor, f: Tensor, mode: Mode) -> Tensor:
        """x [B,T,D] -> normed and rotated entries [B,T/r,size]."""
        blocks = x.float().unflatten(1, (-1, self.ratio))                # [B,N,r,D]
        a = nn.functional.linear(blocks, self.wkv.stored(mode))          # [B,N,r,width]
        g = nn.functional.linear(blocks, self.wgate.stored(mode)) + self.ape
        if self.ratio == 4:
            a, g = self.overlap(a, 0.0), self.overlap(g, -math.inf)      # [B,N,8,size]
        p = (g.softmax(2) * a).sum(2)                                    # [B,N,size]
        e = rms(p.to(mode.dtype), self.norm.weight, mode)
        first = torch.arange(e.shape[1], device=x.device, dtype=torch.float32) * self.ratio
        return rotate(e, first[:, None] * f)

    def overlap(self, v: Tensor, absent: float) -> Tensor:
        """The second half of a block joined with the first half of the previous one."""
        previous, current = v.split(self.size, -1)
        none = torch.full_like(previous[:, :1], absent)
        return torch.cat((torch.cat((none, previous[:, :-1]), 1), current), 2)


class Indexer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.heads, self.size = c.HI, c.DI
        self.wq_b = Weight(c.HI * c.DI, c.Q)
        self.weights_proj = Weight(c.HI, c.D, fp8=False)
        self.compressor = Compressor(c, 4, c.DI)
        self.register_buffer("had", hadamard(c.DI), persistent=False)

    def spin(self, v: Tensor, mode: Mode) -> Tensor:
        return s4(matmul(v, self.had, mode)) if mode.quant else v

    def forward(self, x: Tensor, latent: Tensor, angle: Tensor, f: Tensor, mode: Mode) -> Tensor:
        """Scores [B,T,N] of every entry for every query."""
        B, T, _ = x.shape
        q = lin8(latent, self.wq_b, mode).view(B, T, self.heads, self.size)
        q = self.spin(rotate(q, angle), mode)
        k = self.spin(self.compressor(x, f, mode), mode)                 # [B,N,DI]
        wt = matmul(x, self.weights_proj.stored(mode), mode) * (self.heads * self.size) ** -0.5
        if mode.exact:
            dots = torch.matmul(q.flatten(1, 2).float(), k.float().mT).to(mode.dtype)
        else:
            dots = torch.matmul(q.flatten(1, 2), k.mT)
        dots = dots.view(B, T, self.heads, -1).relu() * wt[..., None]    # [B,T,HI,N]
        return dots.float().sum(2).to(mode.dtype).float()


class Attention(nn.Module):
    def __init__(self, c: Config, layer: int):
        super().__init__()
        self.c, self.ratio = c, c.ratios[layer]
        self.wq_a, self.q_norm = Weight(c.Q, c.D), Norm(c.Q)
        self.wq_b = Weight(c.H * c.d, c.Q)
        self.wkv, self.kv_norm = Weight(c.d, c.D), Norm(c.d)
        self.wo_a = Weight(c.G * c.R, c.H // c.G * c.d)
        self.wo_b = Weight(c.D, c.G * c.R, gain=(2 * c.L) ** -0.5)
        self.attn_sink = nn.Parameter(torch.zeros(c.H))
        self.register_buffer("f", rope_frequencies(c, self.ratio), persistent=False)
        if self.ratio:
            self.compressor = Compressor(c, self.ratio, c.d)
        if self.ratio == 4:
            self.indexer = Indexer(c)

    def forward(self, x: Tensor, mode: Mode, sparse: bool) -> tuple[Tensor, Tensor]:
        """x [B,T,D] with T a multiple of 128 -> output [B,T,D], indexer loss per position [B,T]."""
        c, (B, T, _) = self.c, x.shape
        t = torch.arange(T, device=x.device, dtype=torch.float32)
        angle = t[:, None] * self.f                                      # [T,rd/2]
        latent = rms(lin8(x, self.wq_a, mode), self.q_norm.weight, mode)
        q = lin8(latent, self.wq_b, mode).view(B, T, c.H, c.d)
        q = rotate(rms_plain(q, mode), angle)
        k = rms(lin8(x, self.wkv, mode), self.kv_norm.weight, mode)
        k = kv_grid(rotate(k, angle), c.rd, mode)

        z, keys = self.window(q, k)                                      # [B,T,H,2W], [B,C,2W,d]
        sink = self.attn_sink[:, None]
        top = torch.maximum(z.detach().amax(-1, keepdim=True), sink.detach())
        index_loss = torch.zeros(B, T, device=x.device)
        if self.ratio:
            entries = kv_grid(self.compressor(x, self.f, mode), c.rd, mode)
            seen = self.visible(T, x.device)                             # [T,N]
            zc = torch.matmul(q.flatten(1, 2).float(), entries.float().mT) * c.d**-0.5
            zc = zc.view(B, T, c.H, -1).masked_fill(~seen[:, None], -math.inf)
            top = torch.maximum(top, zc.detach().amax(-1, keepdim=True))
            ec = (zc - top).exp()                                        # [B,T,H,N]
        ew = (z - top).exp()
        total = ew.sum(-1, keepdim=True) + (sink - top).exp()
        if self.ratio == 4:
            # The indexer is trained only by its own loss, which has no gradient to the rest of the model.
            score = self.indexer(x.detach(), latent.detach(), angle, self.f, mode)
            score = score.masked_fill(~seen, -math.inf)
            with torch.no_grad():
                target = (ec / (total + ec.sum(-1, keepdim=True))).mean(2)   # [B,T,N]
            if self.training:
                guess = score.log_softmax(-1).masked_fill(~seen, 0.0)
                index_loss = torch.nan_to_num(-(target * guess).sum(-1))
            if sparse and score.shape[-1] > c.topk:
                best = self.best(score, mode)
                chosen = torch.zeros_like(score).scatter_(-1, best, 1.0)
                ec = ec * chosen[:, :, None]
        out = self.weighted_sum(ew.view(B, T // c.W, c.W * c.H, -1), keys, mode).view(B, T, c.H, c.d)
        if self.ratio:
            total = total + ec.sum(-1, keepdim=True)
            out = out + self.weighted_sum(ec.flatten(1, 2), entries, mode).view(B, T, c.H, c.d)
        o = rotate((out / total).to(mode.dtype), angle, -1.0)
        return self.project(o, mode), index_loss

    def window(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Scaled logits against the last W tokens, in chunks of W queries and 2W keys."""
        c, (B, T, _) = self.c, k.shape
        kc = k.view(B, -1, c.W, c.d)                                     # [B,C,W,d]
        before = torch.cat((torch.zeros_like(kc[:, :1]), kc[:, :-1]), 1)
        keys = torch.cat((before, kc), 2)                                # [B,C,2W,d]
        qc = q.view(B, T // c.W, c.W * c.H, c.d)
        z = torch.matmul(qc.float(), keys.float().mT) * c.d**-0.5        # [B,C,W*H,2W]
        z = z.view(B, T // c.W, c.W, c.H, 2 * c.W)
        i = torch.arange(c.W, device=k.device)[:, None]
        j = torch.arange(2 * c.W, device=k.device)[None]
        near = (j > i) & (j <= i + c.W)
        real = (torch.arange(T // c.W, device=k.device)[:, None, None] > 0) | (j >= c.W)
        z = z.masked_fill(~(near & real)[:, :, None], -math.inf)         # mask [C,W,1,2W]
        return z.view(B, T, c.H, 2 * c.W), keys

    def best(self, score: Tensor, mode: Mode) -> Tensor:
        """Entries [B,T,topk] with the highest scores; bf16 scores after a relu are often equal.

        The exact modes select the lowest index on ties, which makes them reproducible on any device.
        """
        if mode.exact:
            return score.argsort(dim=-1, descending=True, stable=True)[..., :self.c.topk]
        return score.topk(self.c.topk, -1).indices

    def visible(self, T: int, device: torch.device) -> Tensor:
        """[T,N]: entry w is visible iff its last token is not after the query."""
        t = torch.arange(T, device=device)[:, None]
        return torch.arange(T // self.ratio, device=device)[None] < (t + 1) // self.ratio

    @staticmethod
    def weighted_sum(p: Tensor, v: Tensor, mode: Mode) -> Tensor:
        """p times v with p rounded to the mode's dtype; fp32 result."""
        p = p.to(mode.dtype)
        if mode.exact:
            return torch.matmul(p.float(), v.float())
        return torch.matmul(p, v).float()

    def project(self, o: Tensor, mode: Mode) -> Tensor:
        """Grouped low-rank output projection; wo_a takes unquantized inputs."""
        c, (B, T) = self.c, o.shape[:2]
        og = o.reshape(B, T, c.G, -1)
        wg = self.wo_a.stored(mode).view(c.G, c.R, -1)
        u = torch.cat([matmul(og[:, :, g], wg[g], mode) for g in range(c.G)], -1)
        return lin8(u, self.wo_b, mode)
