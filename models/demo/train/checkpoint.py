"""Official checkpoint format: names, dtypes and packing of the files of a model, both directions."""

import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attention import Weight
from config import Config
from model import Model
from mtp import Mtp
from numerics import e2m1, e4m3, fp4_scale, fp8_scale

MAGNITUDES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
MAIN_FILE, MTP_FILE, MTP = "model.safetensors", "mtp.safetensors", "mtp.0."
F32_PARTS = ("hc_", "ape", "attn_sink", "gate.bias")


def e8m0(scale: Tensor) -> Tensor:
    return scale.contiguous().to(torch.float8_e8m0fnu)


def pack_fp8(w: Tensor) -> tuple[Tensor, Tensor]:
    scale = fp8_scale(w)
    wide = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return e4m3(w / wide).to(torch.float8_e4m3fn), e8m0(scale)


def pack_fp4(w: Tensor) -> tuple[Tensor, Tensor]:
    """Two codes per byte along K: low nibble = even k."""
    scale = fp4_scale(w)
    v = e2m1(w / scale.repeat_interleave(32, -1))
    code = torch.searchsorted(MAGNITUDES, v.abs()) + 8 * v.signbit()
    return (code[..., ::2] | code[..., 1::2] << 4).to(torch.uint8).view(torch.int8), e8m0(scale)


def unpack_fp8(code: Tensor, scale: Tensor) -> Tensor:
    return code.float() * scale.float().repeat_interleave(128, 0).repeat_interleave(128, 1)


def unpack_fp4(byte: Tensor, scale: Tensor) -> Tensor:
    byte = byte.view(torch.uint8).long()
    code = torch.stack((byte & 15, byte >> 4), -1).flatten(-2)
    value = MAGNITUDES[code & 7] * (1 - 2 * (code >> 3))
    return value * scale.float().repeat_interleave(32, -1)


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """All tensors of the module in the stored formats, under their names in it."""
    out: dict[str, Tensor] = {}
    fp8 = {f"{n}.weight" for n, m in module.named_modules() if isinstance(m, Weight) and m.fp8}
    for name, value in module.state_dict().items():
        value = value.detach().cpu()
        expert = re.fullmatch(r"(.*\.experts)\.(w[123])", name)
        if expert:
            for e, w in enumerate(value):
                stem = f"{expert[1]}.{e}.{expert[2]}"
                out[f"{stem}.weight"], out[f"{stem}.scale"] = pack_fp4(w)
        elif name in fp8:
            out[name], out[name.removesuffix("weight") + "scale"] = pack_fp8(value)
        elif name.endswith("tid2eid") or any(part in name for part in F32_PARTS):
            out[name] = value
        else:
            out[name] = value.bfloat16()
    return {name: value.contiguous() for name, value in out.items()}


def write(stored: dict[str, Tensor], path: Path) -> None:
    save_file(stored, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors creates it readable by the owner only


def check_size(folder: Path) -> None:
    """With the repository and the packages in mind: files of the model's folder, and of the block."""
    block = folder / MTP_FILE
    sizes = {file: file.stat().st_size for file in folder.iterdir() if file.is_file()}
    main, mtp = sum(size for file, size in sizes.items() if file != block), sizes.get(block, 0)
    print(f"{folder}: {main / 2**20:.2f} MiB and a block of {mtp / 2**20:.2f} MiB")
    assert main <= 15.5 * 2**20 and mtp <= 2.5 * 2**20, "larger than the bundled model may be"


def save(model: Model, config: dict, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write(tensors(model), folder / MAIN_FILE)


def save_mtp(block: Mtp, folder: Path) -> None:
    """Writes the block into a file of its own, and the index that names both files."""
    write({MTP + name: value for name, value in tensors(block).items()}, folder / MTP_FILE)
    weight_map, size = {}, 0
    for file in (MAIN_FILE, MTP_FILE):
        stored = load_file(folder / file)
        weight_map |= dict.fromkeys(stored, file)
        size += sum(value.nbytes for value in stored.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    check_size(folder)


@torch.no_grad()
def restore(module: nn.Module, stored: dict[str, Tensor]) -> None:
    """Copies the stored values, dequantized to fp32, into the module."""

    def value(name: str) -> Tensor:
        w = stored[name]
        scale = stored.get(name.removesuffix("weight") + "scale")
        if scale is None:
            return w if w.dtype == torch.int64 else w.float()
        return unpack_fp4(w, scale) if w.dtype == torch.int8 else unpack_fp8(w, scale)

    for name, target in module.state_dict().items():
        expert = re.fullmatch(r"(.*\.experts)\.(w[123])", name)
        if expert:
            parts = [value(f"{expert[1]}.{e}.{expert[2]}.weight") for e in range(len(target))]
            target.copy_(torch.stack(parts))
        else:
            target.copy_(value(name))


def load(folder: Path) -> Model:
    model = Model(Config.load(folder))
    restore(model, load_file(folder / MAIN_FILE))
    return model.eval()


def load_mtp(folder: Path) -> Mtp:
    block = Mtp(Config.load(folder))
    stored = load_file(folder / MTP_FILE)
    restore(block, {name.removeprefix(MTP): value for name, value in stored.items()})
    return block.eval()
