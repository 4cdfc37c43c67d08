"""Sparse MLA attention of DeepSeek-V3.2 and V4: FP8 paged decode and bf16 prefill.

    flash_mla_with_kvcache, flash_mla_sparse_fwd, get_mla_metadata   FlashMLA's interface
    sparse_mla                                                       all features of the library

Takes torch tensors (or any DLPack arrays), returns torch tensors, runs on torch's current stream. The library itself is
libdsv4_kernels.so beside this file; docs/kernels/sparse_mla_api.md.
"""

from ._core import __version__
from .flash_mla import FlashMLASchedMeta, flash_mla_sparse_fwd, flash_mla_with_kvcache, get_mla_metadata
from .sparse_mla import sparse_mla

__all__ = ["FlashMLASchedMeta", "flash_mla_sparse_fwd", "flash_mla_with_kvcache", "get_mla_metadata", "sparse_mla",
           "__version__"]
