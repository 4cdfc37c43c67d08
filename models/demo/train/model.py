"""The DeepSeek-V4 architecture for training: hyper-connections, attention, mixture of experts.

Parameter names equal the official tensor names, except that the experts of a layer are stacked.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention import Attention, Norm, Weight, lin8
from config import Config
from numerics import Mode, fp4_weight, matmul, on_bf16_grid, rms, s8


class Experts(nn.Module):
    """All routed experts: w1, w3 [E,I,D] and w2 [E,D,I]."""

    def __init__(self, c: Config):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(c.E, c.I, c.D) * c.D**-0.5)
        self.w3 = nn.Parameter(torch.randn(c.E, c.I, c.D) * c.D**-0.5)
        self.w2 = nn.Parameter(torch.randn(c.E, c.D, c.I) * (2 * c.L * c.I) ** -0.5)


class Shared(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.w1, self.w3 = Weight(c.I, c.D), Weight(c.I, c.D)
        self.w2 = Weight(c.D, c.I, gain=(2 * c.L) ** -0.5)


class Gate(nn.Module):
    def __init__(self, c: Config, hashed: bool):
        super().__init__()
        self.hashed, self.c = hashed, c
        self.weight = nn.Parameter(torch.randn(c.E, c.D) * c.D**-0.5)
        if hashed:
            generator = torch.Generator().manual_seed(4)
            table = torch.rand(c.V, c.E, generator=generator).argsort(-1)[:, :c.K].contiguous()
            self.register_buffer("tid2eid", table)
        else:
            self.register_buffer("bias", torch.zeros(c.E))

    def forward(self, x: Tensor, ids: Tensor, mode: Mode) -> tuple[Tensor, Tensor]:
        """Routing weights [B,T,E], zero for unselected experts, and the load of every expert [E]."""
        s = F.softplus(F.linear(x.float(), on_bf16_grid(self.weight, mode))).sqrt()
        chosen = self.tid2eid[ids] if self.hashed else (s + self.bias).topk(self.c.K, -1).indices
        picked = torch.zeros_like(s).scatter(-1, chosen, 1.0)
        weight = s * picked
        weight = weight / weight.sum(-1, keepdim=True) * self.c.route_scale
        return weight, picked.detach().sum((0, 1))


def swiglu(g: Tensor, u: Tensor, limit: float) -> Tensor:
    """silu(g) * u in fp32; the clamp acts before the nonlinearity."""
    return F.silu(g.float().clamp(max=limit)) * u.float().clamp(-limit, limit)


class MoE(nn.Module):
    def __init__(self, c: Config, layer: int):
        super().__init__()
        self.c = c
        self.gate = Gate(c, layer < c.hash_layers)
        self.experts = Experts(c)
        self.shared_experts = Shared(c)

    def forward(self, x: Tensor, ids: Tensor, mode: Mode) -> tuple[Tensor, Tensor]:
        c = self.c
        weight, load = self.gate(x, ids, mode)
        ex, sh = self.experts, self.shared_experts
        w1, w3, w2 = (fp4_weight(w) if mode.quant else w for w in (ex.w1, ex.w3, ex.w2))
        xq = s8(x, 128) if mode.quant else x
        # Every expert runs on every token: at this size that takes just two matrix products.
        g = matmul(xq, w1.flatten(0, 1), mode).unflatten(-1, (c.E, c.I))
        u = matmul(xq, w3.flatten(0, 1), mode).unflatten(-1, (c.E, c.I))
        h = (weight[..., None] * swiglu(g, u, c.limit)).to(mode.dtype).flatten(-2)
        h = s8(h, 128) if mode.quant else h
        routed = self.down(h, w2, mode)                                  # [B,T,D] fp32
        hidden = swiglu(lin8(x, sh.w1, mode), lin8(x, sh.w3, mode), c.limit).to(mode.dtype)
        return (routed + lin8(hidden, sh.w2, mode).float()).to(mode.dtype), load

    def down(self, h: Tensor, w2: Tensor, mode: Mode) -> Tensor:
        """Sum over experts; the official code rounds each expert's output before the fp32 sum."""
        if not mode.exact:
            return matmul(h, w2.transpose(0, 1).flatten(1), mode).float()
        parts = h.split(self.c.I, -1)
        return sum(matmul(parts[e], w2[e], mode).float() for e in range(self.c.E))


def sinkhorn(b: Tensor, rounds: int, eps: float) -> Tensor:
    """b [...,4,4] -> nearly doubly stochastic; starts with rows, ends with columns."""
    b = b.softmax(-1) + eps
    b = b / (b.sum(-2, keepdim=True) + eps)
    for _ in range(rounds - 1):
        b = b / (b.sum(-1, keepdim=True) + eps)
        b = b / (b.sum(-2, keepdim=True) + eps)
    return b


def mix(streams: Tensor, fn: Tensor) -> Tensor:
    """fn applied to the flattened streams [B,T,M,D], divided by their RMS; fp32."""
    flat = streams.flatten(2).float()
    rho = torch.rsqrt(flat.square().mean(-1, keepdim=True) + 1e-6)
    return F.linear(flat, fn) * rho


def gather(streams: Tensor, pre: Tensor, mode: Mode) -> Tensor:
    return (pre[..., None] * streams.float()).sum(2).to(mode.dtype)


class Block(nn.Module):
    def __init__(self, c: Config, layer: int):
        super().__init__()
        self.c = c
        self.attn, self.ffn = Attention(c, layer), MoE(c, layer)
        self.attn_norm, self.ffn_norm = Norm(c.D), Norm(c.D)
        for part, favorite in (("attn", 2 * layer), ("ffn", 2 * layer + 1)):
            width = (2 + c.M) * c.M
            setattr(self, f"hc_{part}_fn", nn.Parameter(torch.randn(width, c.M * c.D) * 0.01))
            setattr(self, f"hc_{part}_scale", nn.Parameter(torch.full((3,), 0.3)))
            setattr(self, f"hc_{part}_base", nn.Parameter(self.start(favorite % c.M)))

    def start(self, favorite: int) -> Tensor:
        """Each part begins with a stream of its own, so that the streams do not stay equal."""
        M = self.c.M
        own = torch.arange(M) == favorite
        pre, post = torch.where(own, 0.5, -1.5), torch.where(own, 1.0, -0.5)
        return torch.cat((pre, post, 3.0 * torch.eye(M).flatten()))

    def split(self, streams: Tensor, part: str, mode: Mode) -> tuple[Tensor, Tensor, Tensor]:
        """hc_pre: the part's input [B,T,D], post [B,T,M], comb [B,T,M,M]."""
        M = self.c.M
        scale, base = getattr(self, f"hc_{part}_scale"), getattr(self, f"hc_{part}_base")
        m = mix(streams, getattr(self, f"hc_{part}_fn"))
        pre = torch.sigmoid(m[..., :M] * scale[0] + base[:M]) + self.c.hc_eps
        post = 2 * torch.sigmoid(m[..., M:2 * M] * scale[1] + base[M:2 * M])
        comb = (m[..., 2 * M:] * scale[2] + base[2 * M:]).unflatten(-1, (M, M))
        return gather(streams, pre, mode), post, sinkhorn(comb, self.c.sinkhorn, self.c.hc_eps)

    @staticmethod
    def join(y: Tensor, streams: Tensor, post: Tensor, comb: Tensor, mode: Mode) -> Tensor:
        """hc_post: new stream k = post_k y + sum_j comb_jk stream_j."""
        old = torch.stack([(comb[..., k, None] * streams.float()).sum(2)
                           for k in range(streams.shape[2])], 2)
        return (post[..., None] * y.float()[:, :, None] + old).to(mode.dtype)

    def forward(self, streams: Tensor, ids: Tensor, mode: Mode, sparse: bool):
        x, post, comb = self.split(streams, "attn", mode)
        y, index_loss = self.attn(rms(x, self.attn_norm.weight, mode), mode, sparse)
        streams = self.join(y, streams, post, comb, mode)
        x, post, comb = self.split(streams, "ffn", mode)
        y, load = self.ffn(rms(x, self.ffn_norm.weight, mode), ids, mode)
        return self.join(y, streams, post, comb, mode), index_loss, load


class Model(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.embed = Weight(c.V, c.D, fp8=False, gain=c.D**0.5)
        self.layers = nn.ModuleList(Block(c, i) for i in range(c.L))
        self.hc_head_fn = nn.Parameter(torch.randn(c.M, c.M * c.D) * 0.01)
        self.hc_head_base = nn.Parameter(torch.zeros(c.M))
        self.hc_head_scale = nn.Parameter(torch.full((1,), 0.3))
        self.norm = Norm(c.D)
        self.head = Weight(c.V, c.D, fp8=False, gain=0.5)

    def forward(self, ids: Tensor, mode: Mode, sparse: bool = True):
        """ids [B,T], T a multiple of 128 -> logits [B,T,V], indexer loss [B,T], loads [L,E]."""
        c = self.c
        e = F.embedding(ids, self.embed.stored(mode)).to(mode.dtype)
        streams = e[:, :, None].expand(-1, -1, c.M, -1)
        index_loss, loads = torch.zeros(ids.shape, device=ids.device), []
        for layer in self.layers:
            # Only training calls the compiled layer: evaluation has too many shapes.
            run = layer if self.training else layer.forward
            streams, loss, load = run(streams, ids, mode, sparse)
            index_loss = index_loss + loss
            loads.append(load)
        return self.logits(streams, mode), index_loss, torch.stack(loads)

    def logits(self, streams: Tensor, mode: Mode) -> Tensor:
        m = mix(streams, self.hc_head_fn)
        pre = torch.sigmoid(m * self.hc_head_scale + self.hc_head_base) + self.c.hc_eps
        h = rms(gather(streams, pre, mode), self.norm.weight, mode)
        return F.linear(h.float(), self.head.stored(mode))
