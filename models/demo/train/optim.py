"""Muon for the matrices, AdamW for everything else."""

import torch
from torch import Tensor, nn


def orthogonalize(g: Tensor) -> Tensor:
    """Newton-Schulz iteration: g [n,rows,cols] -> nearly orthogonal matrices of the same shape."""
    x = g.bfloat16()
    if g.shape[-2] > g.shape[-1]:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if g.shape[-2] > g.shape[-1] else x).float()


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalized per matrix; a 3-D parameter is a stack of matrices."""

    def __init__(self, params: list[nn.Parameter], lr: float, decay: float, momentum: float = 0.95):
        super().__init__(params, {"lr": lr, "decay": decay, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            by_shape: dict[tuple[int, int], list[nn.Parameter]] = {}
            for p in group["params"]:
                by_shape.setdefault(tuple(p.shape[-2:]), []).append(p)
            for shape, params in by_shape.items():
                self.update(group, shape, params)

    def update(self, group: dict, shape: tuple[int, int], params: list[nn.Parameter]) -> None:
        moved = []
        for p in params:
            state = self.state[p]
            if "m" not in state:
                state["m"] = torch.zeros_like(p)
            state["m"].lerp_(p.grad, 1 - group["momentum"])
            moved.append(p.grad.lerp(state["m"], group["momentum"]).view(-1, *shape))
        # The factor gives the update the RMS of a typical AdamW step.
        steps = orthogonalize(torch.cat(moved)) * (0.2 * max(shape) ** 0.5 * group["lr"])
        sizes = [m.shape[0] for m in moved]
        for p, step in zip(params, steps.split(sizes)):
            p.mul_(1 - group["lr"] * group["decay"]).sub_(step.view_as(p))


def build(model: nn.Module, lr: float, decay: float) -> list[torch.optim.Optimizer]:
    """Embedding, head, router, hyper-connections and vectors go to AdamW."""
    aside = ("embed.", "head.", "hc_", "gate.weight", "ape", "weights_proj")
    matrices, rest = [], []
    for name, p in model.named_parameters():
        adam = p.dim() < 2 or any(a in name for a in aside)
        (rest if adam and "wgate" not in name else matrices).append(p)
    fused = rest[0].is_cuda
    return [Muon(matrices, lr, decay),
            torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.98), weight_decay=0.0, fused=fused)]
