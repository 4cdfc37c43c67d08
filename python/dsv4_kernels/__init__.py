"""Attention kernels of dsv4: sparse MLA of DeepSeek-V3.2 and V4, and block-sparse prefill of ordinary models.

    flash_mla_with_kvcache, flash_mla_sparse_fwd, get_mla_metadata   FlashMLA's interface
    sparse_mla                                                       all features of that op
    xattn_estimate, xattn_prefill (Xattention_prefill)               XAttention's interface
    block_sparse_attn_func                                           Block-Sparse-Attention's interface
    thresholds_of                                                    thresholds that the calibration wrote

Takes torch tensors (or any DLPack arrays), returns torch tensors, runs on torch's current stream. The library itself is
libdsv4_kernels.so beside this file; docs/kernels has a page for each.
"""

from ._core import __version__
from .flash_mla import FlashMLASchedMeta, flash_mla_sparse_fwd, flash_mla_with_kvcache, get_mla_metadata
from .sparse_mla import sparse_mla
from .xattn import Xattention_prefill, block_lists_of, block_mask_of, block_sparse_attn_func, xattn_estimate, xattn_prefill
from .xattn_thresholds import thresholds_of

__all__ = ["FlashMLASchedMeta", "Xattention_prefill", "block_lists_of", "block_mask_of", "block_sparse_attn_func",
           "flash_mla_sparse_fwd", "flash_mla_with_kvcache", "get_mla_metadata", "sparse_mla", "thresholds_of",
           "xattn_estimate", "xattn_prefill", "__version__"]
