"""KbitLinear and KbitMoE: torch modules with weights of few bits, and quantize_model(), which puts them in the place of
those of a transformers model. For inference: no gradients.
"""

import torch
from torch import nn

from . import torch_ops
from .kbit_weight import KbitWeight, quantize_weight

ACTIVATIONS = {"SiLU": "silu", "SiLUActivation": "silu", "GELU": "gelu", "GELUActivation": "gelu",
               "GELUTanh": "gelu_tanh", "PytorchGELUTanh": "gelu_tanh"}


class _Weight(nn.Module):
    """A KbitWeight whose tensors are buffers, so that they move and are saved with the module."""

    def __init__(self, weight):
        super().__init__()
        self.template = {name: getattr(weight, name) for name in ("format", "n", "k", "bits", "scale2", "layout", "e4m3")}
        for name in ("data", "scale", "codebook"):
            self.register_buffer(name, getattr(weight, name))

    def weight(self):
        return KbitWeight(data=self.data, scale=self.scale, codebook=self.codebook, **self.template)

    def _apply(self, function, recurse=True):
        """Codebooks stay f32 where .half() or .to(dtype) converts the model."""
        book = self.codebook
        super()._apply(function, recurse)
        if book is not None and self.codebook.dtype != torch.float32:
            self.codebook = book.to(self.codebook.device)
        return self


def reads_images(weight, dtype):
    """Whether Hopper's kernels read kernel images of this weight (docs/kernels/kbit.md) for activations of `dtype`."""
    return (weight.data.is_cuda and torch.cuda.get_device_capability(weight.data.device)[0] == 9
            and dtype == torch.bfloat16 and weight.k <= 8192 and (weight.experts or 1) <= 512
            and (weight.format in ("mxfp4", "nvfp4") or (weight.format == "kbit" and weight.e4m3 and weight.bits <= 4)))


class KbitLinear(nn.Module):
    """nn.Linear with a KbitWeight. A weight of 4,096 rows and more whose reads_images() is true is read faster for up to 8
    rows of x in layout "image"; more than 16 rows, or another weight, have it converted in every call."""

    def __init__(self, weight, bias=None):
        super().__init__()
        self.kbit = _Weight(weight)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.in_features, self.out_features = weight.k, weight.n

    @classmethod
    def from_linear(cls, linear, format="k4-e4m3", *, layout="rows", **options):
        weight = quantize_weight(linear.weight.detach(), format, **options)
        return cls(weight if layout == "rows" else weight.repacked(layout), linear.bias)

    def forward(self, x):
        out = torch_ops.linear(x, self.kbit.weight())
        return out if self.bias is None else out + self.bias

    def extra_repr(self):
        return f"{self.in_features} -> {self.out_features}, {self.kbit.template['bits']} bits"


class KbitMoE(nn.Module):
    """The experts of a layer: forward(hidden_states [t, d], top_k_index [t, k], top_k_weights [t, k]) -> [t, d]."""

    def __init__(self, gate, up, down, activation="silu", limit=None):
        super().__init__()
        self.gate, self.up, self.down = _Weight(gate), _Weight(up), _Weight(down)
        self.activation, self.limit = activation, limit

    @classmethod
    def from_experts(cls, experts, format="k3-e4m3", *, layout=None, **options):
        """From a module with gate_up_proj [e, 2 i, d], down_proj [e, d, i] and act_fn, as transformers' have.

        layout  "rows" or "image"; None: images where Hopper's kernels read them for activations of the dtype of
                the floats: about half of the time for up to some hundred tokens, and up to 2.4 times for long prompts
        """
        name = type(experts.act_fn).__name__
        if name not in ACTIVATIONS:
            raise ValueError(f"experts with the activation {name}: want one of {sorted(ACTIVATIONS)}")
        gate, up = experts.gate_up_proj.detach().chunk(2, dim=1)
        parts = [quantize_weight(part, format, **options) for part in (gate, up, experts.down_proj.detach())]
        if layout is None and all(reads_images(part, experts.down_proj.dtype) for part in parts):
            layout = "image"
        if layout not in (None, "rows"):
            parts = [part.repacked(layout) for part in parts]
        return cls(*parts, activation=ACTIVATIONS[name])

    def forward(self, hidden_states, top_k_index, top_k_weights):
        stacks = (self.gate.weight(), self.up.weight(), self.down.weight())
        return torch_ops.moe(hidden_states, stacks, top_k_index.to(torch.int32), top_k_weights.float(), self.activation,
                             self.limit)


def _is_experts(module):
    return (getattr(getattr(module, "gate_up_proj", None), "ndim", 0) == 3
            and getattr(getattr(module, "down_proj", None), "ndim", 0) == 3 and hasattr(module, "act_fn"))


def quantize_model(model, linear="k4-e4m3", experts="k3-e4m3", skip=("lm_head",), **options):
    """Replaces every nn.Linear and every stack of experts of `model`, in place, and returns the names it replaced.

    linear, experts  formats of quantize_weight(); None: these stay as they are
    skip             modules whose names end so stay; also those whose columns are not a multiple of 32
    options          of quantize_weight()
    """
    replaced = []
    for name, module in list(model.named_modules()):
        if name.endswith(tuple(skip)):
            continue
        new = None
        if linear is not None and isinstance(module, nn.Linear) and module.in_features % 32 == 0:
            new = KbitLinear.from_linear(module, linear, **options)
        elif experts is not None and _is_experts(module):
            new = KbitMoE.from_experts(module, experts, **options)
        if new is not None:
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, new)
            replaced.append(name)
    return replaced
