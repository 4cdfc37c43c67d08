"""What this package asks of an array library: a new array, and the stream that its work goes to."""

import sys


class _Torch:
    def __init__(self, like):
        import torch
        self.torch, self.device = torch, like.device

    def empty(self, shape, dtype):
        return self.torch.empty(shape, dtype=getattr(self.torch, dtype), device=self.device)

    def stream(self):
        if self.device.type != "cuda":
            return 0
        return self.torch.cuda.current_stream(self.device).cuda_stream


class _NumPy:
    """NumPy, and CuPy, which has its names."""

    def __init__(self, like):
        self.library = sys.modules[type(like).__module__.partition(".")[0]]

    def empty(self, shape, dtype):
        return self.library.empty(shape, dtype=dtype)

    def stream(self):
        cuda = getattr(self.library, "cuda", None)
        return 0 if cuda is None else cuda.get_current_stream().ptr


class _DLPack(_Torch):
    """Any other library: its arrays are read, the results are torch's."""

    def __init__(self, like):
        import torch
        kind, index = like.__dlpack_device__()
        self.torch = torch
        self.device = torch.device("cuda", index) if kind == 2 else torch.device("cpu")


def library_of(array):
    name = type(array).__module__.partition(".")[0]
    if hasattr(array, "data_ptr"):  # a torch.Tensor, or a subclass of it from anywhere
        return _Torch(array)
    if name in ("numpy", "cupy"):
        return _NumPy(array)
    if hasattr(array, "__dlpack_device__"):
        return _DLPack(array)
    raise ValueError(f"q: want a tensor, got {type(array).__name__}")


def dtype_name(array):
    """'bfloat16', 'float32', ...: torch writes 'torch.bfloat16'."""
    return str(array.dtype).rpartition(".")[2]
