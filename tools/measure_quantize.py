#!/usr/bin/env python3
"""Measures `dsv4 quantize` on tensors of the actual V4-Flash sizes and writes one JSON file.

    tools/measure_quantize.py [--build build/cpu] [--experts k3 --dense fp8] [--layers 1] [--device cuda]
                              --out bench/results/quantize.json

Makes a checkpoint of random bytes in a temporary folder: embedding, head, and per layer all 256 experts in
MXFP4, attention and shared experts in FP8, router and norms; 5.7 GB with one layer. Converts it and
reports weights per second, GB per second and the peak of resident memory, which must stay below 2 GiB plus
the largest tensor (exit code 1 otherwise). The folder needs about 2.5 times the checkpoint and is removed.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

D, I, EXPERTS, VOCAB = 4096, 2048, 256, 129280
HEADS, HEAD_DIM, Q_LORA, GROUPS, O_LORA = 64, 512, 1024, 8, 1024
ITEM = {"F32": 4, "BF16": 2, "I64": 8, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1}
LIMIT = 2 << 30


def fp8(prefix, n, k):
    return [(f"{prefix}.weight", "F8_E4M3", [n, k]), (f"{prefix}.scale", "F8_E8M0", [n // 128, k // 128])]


def mxfp4(prefix, n, k):
    return [(f"{prefix}.weight", "I8", [n, k // 2]), (f"{prefix}.scale", "F8_E8M0", [n, k // 32])]


def layer(at):
    """Tensors of a layer with learned routing and window attention (docs/spec/dsv4.md 10.2)."""
    tensors = []
    for name in ("attn_norm", "ffn_norm"):
        tensors.append((f"{at}.{name}.weight", "BF16", [D]))
    for name in ("hc_attn", "hc_ffn"):
        tensors += [(f"{at}.{name}_fn", "F32", [24, 4 * D]), (f"{at}.{name}_base", "F32", [24]),
                    (f"{at}.{name}_scale", "F32", [3])]
    tensors += [(f"{at}.attn.attn_sink", "F32", [HEADS]), (f"{at}.attn.q_norm.weight", "BF16", [Q_LORA]),
                (f"{at}.attn.kv_norm.weight", "BF16", [HEAD_DIM])]
    for name, n, k in (("wq_a", Q_LORA, D), ("wq_b", HEADS * HEAD_DIM, Q_LORA), ("wkv", HEAD_DIM, D),
                       ("wo_a", GROUPS * O_LORA, D), ("wo_b", D, GROUPS * O_LORA)):
        tensors += fp8(f"{at}.attn.{name}", n, k)
    tensors += [(f"{at}.ffn.gate.weight", "BF16", [EXPERTS, D]), (f"{at}.ffn.gate.bias", "F32", [EXPERTS])]
    for name, n, k in (("w1", I, D), ("w3", I, D), ("w2", D, I)):
        tensors += fp8(f"{at}.ffn.shared_experts.{name}", n, k)
        for e in range(EXPERTS):
            tensors += mxfp4(f"{at}.ffn.experts.{e}.{name}", n, k)
    return tensors


def all_tensors(layers):
    tensors = [("embed.weight", "BF16", [VOCAB, D]), ("head.weight", "BF16", [VOCAB, D]),
               ("norm.weight", "BF16", [D]), ("hc_head_fn", "F32", [4, 4 * D]),
               ("hc_head_base", "F32", [4]), ("hc_head_scale", "F32", [1])]
    for number in range(layers):
        tensors += layer(f"layers.{number}")
    return tensors


def random_values(rng, dtype, count):
    """Bytes that decode to weights of plausible magnitude, never NaN."""
    if dtype == "F8_E8M0":
        return rng.integers(117, 122, count, dtype=np.uint8)
    if dtype == "F8_E4M3":
        codes = rng.integers(0, 256, count, dtype=np.uint8)
        return codes & np.uint8(0xF7)  # 0x7f and 0xff are NaN
    if dtype == "I8":
        return rng.integers(0, 256, count, dtype=np.uint8)
    values = (rng.standard_normal(count, dtype=np.float32) * np.float32(0.02))
    return values if dtype == "F32" else (values.view(np.uint32) >> 16).astype(np.uint16)


def write_shard(path, tensors, rng):
    """One safetensors file, tensor by tensor, so that this script needs little memory, too."""
    tensors = sorted(tensors, key=lambda t: -ITEM[t[1]])
    header, begin = {}, 0
    for name, dtype, shape in tensors:
        end = begin + ITEM[dtype] * int(np.prod(shape))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, dtype, shape in tensors:
            left = int(np.prod(shape))
            while left > 0:
                count = min(left, 1 << 24)
                file.write(random_values(rng, dtype, count).tobytes())
                left -= count
    return begin


def write_config(folder, layers):
    config = json.loads((Path(__file__).parent.parent / "models" / "demo" / "config.json").read_text())
    config.update(hidden_size=D, moe_intermediate_size=I, n_routed_experts=EXPERTS, num_experts_per_tok=6,
                  num_attention_heads=HEADS, head_dim=HEAD_DIM, q_lora_rank=Q_LORA, o_groups=GROUPS,
                  o_lora_rank=O_LORA, num_hidden_layers=layers, compress_ratios=[0] * layers, num_nextn_predict_layers=0, num_hash_layers=0,
                  vocab_size=VOCAB, index_n_heads=64, index_topk=512)
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def make_checkpoint(folder, layers):
    """Two shards, as downloads are sharded: the tensors outside the layers, and the layers."""
    rng = np.random.default_rng(1)
    folder.mkdir()
    write_config(folder, layers)
    tensors = all_tensors(layers)
    outside = [t for t in tensors if not t[0].startswith("layers.")]
    inside = [t for t in tensors if t[0].startswith("layers.")]
    weight_map, size = {}, 0
    for number, part in enumerate((outside, inside), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        size += write_shard(folder / file, part, rng)
        weight_map.update({name: file for name, _, _ in part})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map}))
    return size


def convert(binary, source, out, flags):
    """Runs the converter; returns its report and the peak resident memory reported by the system."""
    process = subprocess.Popen([binary, "quantize", str(source), "-o", str(out), "--json", *flags],
                               stdout=subprocess.PIPE, text=True)
    report = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"dsv4 quantize failed: {status}")
    return json.loads(report), usage


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def device_name(device):
    """The GPU behind cuda:N, as its driver calls it."""
    if not device.startswith("cuda"):
        return device
    number = device.partition(":")[2] or "0"
    command = ["nvidia-smi", f"--id={number}", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/cpu")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--experts", default="k3")
    parser.add_argument("--dense", default="keep")
    parser.add_argument("--scales", default="search")
    parser.add_argument("--device", default="cpu", help="as dsv4 quantize takes it")
    parser.add_argument("--folder", help="parent of the temporary folder")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    flags = ["--experts", args.experts, "--dense", args.dense, "--scales", args.scales,
             "--device", args.device]
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        source = Path(temporary) / "flash"
        source_bytes = make_checkpoint(source, args.layers)
        report, usage = convert(str(Path(args.build) / "bin" / "dsv4"), source, Path(temporary) / "out", flags)
    peak = usage.ru_maxrss * 1024
    limit = LIMIT + report["largest_tensor_bytes"]
    seconds = report["seconds"]
    result = {"cpu": cpu_name(), "device": device_name(report["device"]), "threads": int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())),
              "date": time.strftime("%Y-%m-%d"), "command": " ".join(["tools/measure_quantize.py", *sys.argv[1:]]),
              "flags": flags, "layers": args.layers, "source_bytes": source_bytes, "bytes": report["bytes"],
              "seconds": seconds, "cpu_seconds": usage.ru_utime + usage.ru_stime,
              "weights_per_s": report["converted_weights"] / seconds,
              "weights_per_cpu_s": report["converted_weights"] / (usage.ru_utime + usage.ru_stime),
              "load_average": os.getloadavg()[0],
              "read_gb_per_s": report["read_bytes"] / seconds / 1e9, "peak_rss_bytes": peak,
              "largest_tensor_bytes": report["largest_tensor_bytes"], "limit_bytes": limit,
              "within_limit": peak < limit, "totals": report["totals"]}
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    print(f"peak {peak / 2**20:.0f} MiB of {limit / 2**20:.0f} allowed, "
          f"{result['weights_per_s'] / 1e6:.1f} M weights/s, {seconds:.0f} s")
    return 0 if peak < limit else 1


if __name__ == "__main__":
    sys.exit(main())
