"""The MTP block of DeepSeek-V4 for training: a window-only layer that predicts one token further.

    row t:  streams X_t of the main model after its last layer [M,D], and the token after it, y
    X0   =  h_proj(norm(X_t) per stream) + e_proj(norm(embed[y])) in every stream
    X1   =  Block(X0);  logits of the token after y = main head(norm(hc_head(X1)))

Parameter names are the official ones after "mtp.0.". Embedding and head are the main model's.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention import Norm, Weight, lin8
from config import Config
from model import Block, Model, gather, mix
from numerics import Mode, rms


class Mtp(Block):
    def __init__(self, c: Config):
        super().__init__(c, c.L)
        self.enorm, self.hnorm, self.norm = Norm(c.D), Norm(c.D), Norm(c.D)
        self.e_proj, self.h_proj = Weight(c.D, c.D), Weight(c.D, c.D)
        self.hc_head_fn = nn.Parameter(torch.zeros(c.M, c.M * c.D))
        self.hc_head_base = nn.Parameter(torch.zeros(c.M))
        self.hc_head_scale = nn.Parameter(torch.full((1,), 0.3))

    @torch.no_grad()
    def start_from(self, main: Model) -> None:
        """The last layer's block, the head's mix and norm; the streams pass h_proj unchanged."""
        last = main.layers[-1].state_dict()
        own = {name: last[name] for name in super().state_dict() if name in last}
        self.load_state_dict(own, strict=False)
        for name in ("hc_head_fn", "hc_head_base", "hc_head_scale"):
            getattr(self, name).copy_(getattr(main, name))
        self.norm.weight.copy_(main.norm.weight)
        self.h_proj.weight.copy_(torch.eye(self.c.D))

    def forward(self, main: Model, streams: Tensor, following: Tensor, mode: Mode):
        """streams [B,T,M,D], following [B,T] -> logits [B,T,V], streams [B,T,M,D], load [E]."""
        e = F.embedding(following, main.embed.stored(mode)).to(mode.dtype)
        e = lin8(rms(e, self.enorm.weight, mode), self.e_proj, mode)
        z = lin8(rms(streams.to(mode.dtype), self.hnorm.weight, mode), self.h_proj, mode)
        out, _, load = super().forward(z + e[:, :, None], following, mode, False)
        m = mix(out, self.hc_head_fn)
        pre = torch.sigmoid(m * self.hc_head_scale + self.hc_head_base) + self.c.hc_eps
        h = rms(gather(out, pre, mode), self.norm.weight, mode)
        return F.linear(h.float(), main.head.stored(mode)), out, load
