"""What this package needs from an array library: new arrays on q's device, and the stream to use."""

import sys

from . import _core


class _Torch:
    def __init__(self, q):
        import torch
        self.torch, self.q = torch, q

    def like(self, shape):
        return self.q.new_empty(shape)

    def empty(self, shape, dtype):
        return self.torch.empty(shape, dtype=self._dtype(dtype), device=self.q.device)

    def _dtype(self, dtype):
        return getattr(self.torch, dtype) if isinstance(dtype, str) else dtype

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

    def stack(self, arrays):
        return self.torch.stack(arrays)

    def concat(self, arrays):
        return self.torch.cat(arrays, -1)

    def matmul(self, a, b):
        return a @ b

    def exp2(self, array):
        return self.torch.exp2(array)

    def frexp(self, array):
        return self.torch.frexp(array)

    def round(self, array):
        return self.torch.round(array)

    def take(self, table, indices):
        return table[indices.long()]

    def bytes(self, array):
        return array.to(self.torch.uint8)

    def amax(self, array):
        return array.amax(-1, keepdim=True)

    def cast(self, array, like):
        return array.to(like.dtype)

    def is_dtype(self, array, name):
        return array.dtype == getattr(self.torch, name)

    def compiling(self):
        return self.torch.compiler.is_compiling()

    def kernels(self):
        """_core, or inside torch.compile the operators that stand for it in a graph."""
        if self.compiling():
            from . import torch_ops
            return torch_ops
        return _core

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

    def stack(self, arrays):
        return self.library.stack(arrays)

    def concat(self, arrays):
        return self.library.concatenate(arrays, -1)

    def matmul(self, a, b):
        """Sums are f32, rounded once."""
        return (a.astype("float32") @ b.astype("float32")).astype(a.dtype)

    def exp2(self, array):
        return self.library.exp2(array)

    def frexp(self, array):
        return self.library.frexp(array)

    def round(self, array):
        return self.library.rint(array)

    def take(self, table, indices):
        return table[indices]

    def bytes(self, array):
        return array.astype("uint8")

    def amax(self, array):
        return array.max(-1, keepdims=True)

    def cast(self, array, like):
        return array.astype(like.dtype)

    def is_dtype(self, array, name):
        return str(array.dtype) == name

    def compiling(self):
        return False

    def kernels(self):
        return _core

    def stream(self):
        cuda = getattr(self.library, "cuda", None)
        return 0 if cuda is None else cuda.get_current_stream().ptr


def how(library, implementation=None, numerics="official", workspace=None):
    """The last two arguments of _core's functions: (exact, implementation, stream), and what gives them workspace."""
    if numerics not in ("official", "exact"):
        raise ValueError(f"numerics={numerics!r}: want 'official' or 'exact'")

    def allocate(size):
        if workspace is None:
            return library.empty((size,), "uint8")
        if workspace.shape[0] < size:
            raise ValueError(f"workspace: want {size} bytes, got {workspace.shape[0]}")
        return workspace

    return (numerics == "exact", implementation, library.stream()), allocate


def _from_dlpack(q):
    """Any other library: its arrays are read, the results are torch tensors."""
    import torch
    return _Torch(torch.from_dlpack(q))


def library_of(q):
    home = type(q).__module__.partition(".")[0]
    if home == "torch" or hasattr(q, "data_ptr"):  # or a subclass from elsewhere; hasattr cannot be compiled
        return _Torch(q)
    if home in ("numpy", "cupy"):
        return _NumPy(q)
    if hasattr(q, "__dlpack__"):
        return _from_dlpack(q)
    raise ValueError(f"q: want a tensor, got {type(q).__name__}")
