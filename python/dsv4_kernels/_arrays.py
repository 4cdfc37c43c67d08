"""What this package needs from an array library: new arrays on q's device, and the stream to use."""

import sys


class _Torch:
    def __init__(self, q):
        import torch
        self.torch, self.q = torch, q

    def like(self, shape):
        return self.q.new_empty(shape)

    def empty(self, shape, dtype):
        return self.torch.empty(shape, dtype=getattr(self.torch, dtype), device=self.q.device)

    def full(self, shape, value, dtype):
        return self.torch.full(shape, value, dtype=getattr(self.torch, dtype), device=self.q.device)

    def arange(self, n):
        return self.torch.arange(n, dtype=self.torch.int32, device=self.q.device)

    def array(self, values, dtype):
        return self.torch.as_tensor(values, dtype=getattr(self.torch, dtype), device=self.q.device)

    def put_along_last(self, array, index, values):
        array.scatter_(-1, index.long(), values.expand(index.shape))

    def where(self, condition, a, b):
        return self.torch.where(condition, a, b)

    def packed(self, array):
        return array.contiguous()

    def stream(self):
        return self.torch.cuda.current_stream(self.q.device).cuda_stream if self.q.is_cuda else 0


class _NumPy:
    """NumPy, and CuPy, which has the same names."""

    def __init__(self, q):
        self.library, self.dtype = sys.modules[type(q).__module__.partition(".")[0]], q.dtype

    def like(self, shape):
        return self.library.empty(shape, dtype=self.dtype)

    def empty(self, shape, dtype):
        return self.library.empty(shape, dtype=dtype)

    def full(self, shape, value, dtype):
        return self.library.full(shape, value, dtype=dtype)

    def arange(self, n):
        return self.library.arange(n, dtype="int32")

    def array(self, values, dtype):
        return self.library.asarray(values, dtype=dtype)

    def put_along_last(self, array, index, values):
        self.library.put_along_axis(array, index, self.library.broadcast_to(values, index.shape), -1)

    def where(self, condition, a, b):
        return self.library.where(condition, a, b)

    def packed(self, array):
        return self.library.ascontiguousarray(array)

    def stream(self):
        cuda = getattr(self.library, "cuda", None)
        return 0 if cuda is None else cuda.get_current_stream().ptr


def _from_dlpack(q):
    """Any other library: its arrays are read, the results are torch tensors."""
    import torch
    return _Torch(torch.from_dlpack(q))


def library_of(q):
    if hasattr(q, "data_ptr"):  # a torch.Tensor, or a subclass of it
        return _Torch(q)
    if type(q).__module__.partition(".")[0] in ("numpy", "cupy"):
        return _NumPy(q)
    if hasattr(q, "__dlpack__"):
        return _from_dlpack(q)
    raise ValueError(f"q: want a tensor, got {type(q).__name__}")
