"""`dsv4 quantize` to NVFP4 and MXFP4: the folder by an independent reader, written from compressed-tensors' text and the
formats' papers, and by compressed-tensors itself where it is installed."""

import json
import os
import pathlib
import subprocess

import kbit_reference as reference
import numpy
import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
DSV4 = pathlib.Path(os.environ.get("DSV4_BINARY", ROOT / "build/cpu/bin/dsv4"))
pytestmark = pytest.mark.skipif(not DSV4.exists(), reason="build/cpu/bin/dsv4 is not built")
RECIPES = {"nvfp4": ["--experts", "nvfp4", "--dense", "bf16"], "mxfp4": ["--dense", "mxfp4", "--experts", "mxfp4"]}
NAMES = {"nvfp4": "layers.1.ffn.experts.3.w2", "mxfp4": "layers.1.attn.wq_b"}


def read_folder(folder):
    """name -> (dtype, shape, bytes)"""
    tensors = {}
    for file in sorted(pathlib.Path(folder).glob("*.safetensors")):
        data = file.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                tensors[name] = entry["dtype"], entry["shape"], data[8 + size + begin:8 + size + end]
    return tensors


def array(tensors, name, dtype):
    kind, shape, data = tensors[name]
    assert kind == dtype, (name, kind)
    return numpy.frombuffer(data, numpy.float32 if kind == "F32" else numpy.uint8).reshape(shape)


def decode(tensors, prefix, format):
    packed = array(tensors, prefix + ".weight_packed", "U8")
    if format == "mxfp4":
        scales, group = numpy.exp2(array(tensors, prefix + ".weight_scale", "U8").astype(float) - 127), 32
    else:
        scales, group = reference.decode_e4m3(array(tensors, prefix + ".weight_scale", "F8_E4M3")), 16
        scales = scales / array(tensors, prefix + ".weight_global_scale", "F32")[0].astype(float)
    return reference.e2m1_values(packed) * numpy.repeat(scales, group, 1)


def source_values(prefix):
    tensors = read_folder(ROOT / "models/demo")
    kind, shape, data = tensors[prefix + ".weight"]
    bytes = numpy.frombuffer(data, numpy.uint8).reshape(shape)
    scale = numpy.exp2(array(tensors, prefix + ".scale", "F8_E8M0").astype(float) - 127)
    if kind == "F8_E4M3":
        scale = numpy.repeat(numpy.repeat(scale, 128, 0)[:shape[0]], 128, 1)[:, :shape[1]]
        return reference.decode_e4m3(bytes) * scale
    return reference.e2m1_values(bytes) * numpy.repeat(scale, 32, 1)


@pytest.fixture(scope="module", params=RECIPES)
def folder(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("fp4") / request.param
    run = subprocess.run([DSV4, "quantize", "demo", "-o", out, *RECIPES[request.param]], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return request.param, out


def test_config_and_tensors(folder):
    format, path = folder
    config = json.loads((path / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors" and config["format"] == f"{format}-pack-quantized"
    weights = config["config_groups"]["group_0"]["weights"]
    assert weights["num_bits"] == 4 and weights["type"] == "float" and weights["symmetric"]
    assert (weights["group_size"], weights["strategy"]) == {"nvfp4": (16, "tensor_group"), "mxfp4": (32, "group")}[format]
    tensors = read_folder(path)
    packed = {name[:-len(".weight_packed")] for name in tensors if name.endswith(".weight_packed")}
    assert packed and not packed & set(config["ignore"])
    for name, (dtype, _, _) in tensors.items():
        assert not name.endswith(".scale") and dtype in ("F32", "BF16", "U8", "F8_E4M3", "I64", "I32", "F16")
    assert set(config["ignore"]) <= {name[:-len(".weight")] for name in tensors if name.endswith(".weight")}


def test_values(folder):
    format, path = folder
    want, got = source_values(NAMES[format]), decode(read_folder(path), NAMES[format], format)
    sqnr = 10 * numpy.log10((want**2).sum() / ((want - got)**2).sum())
    assert got.shape == want.shape and sqnr > 18
    ledger = json.loads((path / "quantization_ledger.json").read_text())
    recorded = next(w for w in ledger["weights"] if NAMES[format] in json.dumps(w))
    assert abs(sqnr - float(numpy.ravel([v for v in (recorded.values() if isinstance(recorded, dict) else recorded)
                                         if isinstance(v, float)])[-1])) < .02


def test_experts_of_mxfp4_are_the_source(folder):
    format, path = folder
    if format != "mxfp4":
        pytest.skip("NVFP4 is another format than the demo's experts")
    name, before, after = "layers.1.ffn.experts.3.w2", read_folder(ROOT / "models/demo"), read_folder(path)
    assert after[name + ".weight_packed"][2] == before[name + ".weight"][2]
    assert after[name + ".weight_scale"][2] == before[name + ".scale"][2]


def test_our_loader_reads_it(folder):
    _, path = folder
    verify = subprocess.run([DSV4, "inspect", path, "--verify"], capture_output=True, text=True)
    assert verify.returncode == 0, verify.stdout + verify.stderr
    text = subprocess.run([DSV4, "run", path, "-p", "Once upon a time", "-n", "12", "--temp", "0"], capture_output=True,
                          text=True)
    assert text.returncode == 0 and len(text.stdout.split()) > 4, text.stderr


def test_compressed_tensors_reads_it(folder):
    """The library's own configuration class and decompressor; of MXFP4 it has the parts of one."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.compressors.mx_utils import decompress_mx_scale
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationConfig
    from safetensors import safe_open
    format, path = folder
    config = QuantizationConfig.model_validate(json.loads((path / "config.json").read_text())["quantization_config"])
    scheme, prefix = config.config_groups["group_0"], NAMES[format]
    state = {}
    for file in path.glob("*.safetensors"):
        with safe_open(file, "pt") as f:
            state |= {name[len(prefix) + 1:]: f.get_tensor(name) for name in f.keys() if name.startswith(prefix + ".")}
    want = decode(read_folder(path), prefix, format)
    if format == "nvfp4":
        got = BaseCompressor.get_value_from_registry(scheme.format).decompress(state, scheme)["weight"].double()
        assert numpy.abs(got.numpy() - want).max() <= 2.0**-8 * numpy.abs(want).max()  # the library computes in bf16
    else:
        rows, columns = state["weight_packed"].shape
        codes = unpack_fp4_from_uint8(state["weight_packed"], rows, 2 * columns).double()
        scales = decompress_mx_scale(state["weight_scale"]).double()
        assert numpy.array_equal((codes * scales.repeat_interleave(32, 1)).numpy(), want)
