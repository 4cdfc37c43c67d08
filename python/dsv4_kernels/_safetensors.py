"""Reads and writes safetensors with NumPy alone: u64 n | n bytes of JSON | data. bf16 is read as float32."""

import json
import struct

import numpy

_TYPES = {"F32": numpy.float32, "F16": numpy.float16, "I32": numpy.int32, "U8": numpy.uint8, "F64": numpy.float64}


class Dump:
    """A file whose tensors are read on demand: dump[name], name in dump, list(dump)."""

    def __init__(self, path):
        with open(path, "rb") as file:
            size = file.read(8)
            if len(size) < 8 or struct.unpack("<Q", size)[0] > 100 << 20:
                raise ValueError(f"{path}: no safetensors file")
            n = struct.unpack("<Q", size)[0]
            try:
                self.header = json.loads(file.read(n))
            except ValueError as error:
                raise ValueError(f"{path}: no safetensors file") from error
        self.header.pop("__metadata__", None)
        self.path, self.bytes = path, numpy.memmap(path, numpy.uint8, "r", 8 + n)

    def __contains__(self, name):
        return name in self.header

    def __iter__(self):
        return iter(self.header)

    def __getitem__(self, name):
        entry = self.header[name]
        begin, end = entry["data_offsets"]
        data, dtype = numpy.asarray(self.bytes[begin:end]), entry["dtype"]
        if dtype == "BF16":
            values = (data.view(numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)
        elif dtype in _TYPES:
            values = data.view(_TYPES[dtype])
        else:
            raise ValueError(f"{self.path}: {name} is {dtype}: want {', '.join(['BF16', *_TYPES])}")
        return values.reshape(entry["shape"])


def write(path, tensors):
    """tensors: {name: array of a type of _TYPES}"""
    names = {numpy.dtype(type_): name for name, type_ in _TYPES.items()}
    header, offset = {}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": names[array.dtype], "shape": list(array.shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(numpy.ascontiguousarray(array).tobytes())
