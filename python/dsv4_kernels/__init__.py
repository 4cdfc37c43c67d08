"""Kernels of dsv4: sparse MLA of DeepSeek-V3.2 and V4, block-sparse prefill of ordinary models, and products of weights
of 2 to 5 bits.

    flash_mla_with_kvcache, flash_mla_sparse_fwd, get_mla_metadata   FlashMLA's interface
    sparse_mla                                                       all features of that op
    kv_insert                                                        writes entries of the caches that it reads
    xattn_estimate, xattn_prefill (Xattention_prefill)               XAttention's interface
    flat_group_gemm_fuse_reshape, softmax_fuse_block_sum             its two stages
    block_sparse_attn_func                                           Block-Sparse-Attention's interface
    thresholds_of                                                    thresholds that the calibration wrote
    quantize_kbit, dequantize_kbit, repack_kbit, kbit_linear, ..     bitsandbytes' k-bit functions (kbit.py)
    kbit_moe, KbitWeight, quantize_weight, create_codebook           mixtures of experts; weights as objects
    tile_scales, untile_scales                                       FP4 scales in the order of Blackwell's tensor cores
    KbitLinear, KbitMoE, quantize_model                              torch modules; importing them imports torch

Takes torch tensors (or any DLPack arrays), returns torch tensors, runs on torch's current stream. The library itself is
libdsv4_kernels.so beside this file; docs/kernels has a page for each.
"""

from ._core import __version__
from .flash_mla import FlashMLASchedMeta, flash_mla_sparse_fwd, flash_mla_with_kvcache, get_mla_metadata
from .e4m4 import decode_absmax_e4m4, encode_absmax_e4m4
from .kbit import (create_bnf_codebook, create_normal_float_codebook, dequantize_kbit, dequantize_kbit_tiled,
                   kbit_expert_linear, kbit_expert_linear_workspace, kbit_gemm_prod, kbit_grouped_gemm, kbit_linear,
                   kbit_linear_workspace, kbit_moe, kbit_moe_workspace, kbit_scalar_gemv, kbit_scalar_gemv_tiled,
                   quantize_kbit, repack_kbit, tile_scales, untile_scales)
from .kbit_weight import KbitWeight, create_codebook, quantize_weight, stack_of
from .sparse_mla import kv_insert, sparse_mla
from .xattn import Xattention_prefill, block_lists_of, block_mask_of, block_sparse_attn_func, xattn_estimate, xattn_prefill
from .xattn_stages import flat_group_gemm_fuse_reshape, softmax_fuse_block_sum
from .xattn_thresholds import thresholds_of

_MODULES = ("KbitLinear", "KbitMoE", "quantize_model")

__all__ = ["FlashMLASchedMeta", "KbitWeight", "Xattention_prefill", "block_lists_of", "block_mask_of",
           "block_sparse_attn_func", "create_bnf_codebook", "create_codebook", "create_normal_float_codebook",
           "decode_absmax_e4m4", "dequantize_kbit", "dequantize_kbit_tiled", "encode_absmax_e4m4",
           "flash_mla_sparse_fwd", "flash_mla_with_kvcache", "flat_group_gemm_fuse_reshape",
           "get_mla_metadata", "kbit_expert_linear", "kbit_expert_linear_workspace", "kbit_gemm_prod",
           "kbit_grouped_gemm", "kbit_linear", "kbit_linear_workspace", "kbit_moe", "kbit_moe_workspace",
           "kbit_scalar_gemv", "kbit_scalar_gemv_tiled", "kv_insert", "quantize_kbit",
           "quantize_weight", "repack_kbit", "softmax_fuse_block_sum", "sparse_mla", "stack_of", "thresholds_of", "tile_scales",
           "untile_scales", "xattn_estimate", "xattn_prefill", *_MODULES, "__version__"]


def __getattr__(name):
    if name in _MODULES:
        from . import modules
        return getattr(modules, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
