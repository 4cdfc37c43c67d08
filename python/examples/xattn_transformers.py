"""XAttention in a Hugging Face transformers model: an attention function of the library's attention interface.

    from xattn_transformers import use_xattention
    use_xattention(model, threshold=0.9)                        # or thresholds=thresholds_of("thresholds.json")
    model.generate(..)                                          # prompts are sparse, decoding is not

For models with ordinary attention (Llama, Qwen2, Qwen3, Mistral, ..): every head sees all earlier tokens, no sink or
bias in the softmax. A prompt with a padding mask, and every step of decoding, runs through transformers' own `sdpa`.
"""

import dsv4_kernels
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "dsv4_xattention"


class XAttention:
    """threshold, stride: of all layers, unless `thresholds` (dsv4_kernels.thresholds_of) has them per layer and head.
    dense_layers are not approximated. Prompts below min_length are dense."""

    def __init__(self, threshold=0.9, stride=16, thresholds=None, dense_layers=(), min_length=4096, dense_tail=0):
        self.threshold, self.stride, self.thresholds = threshold, stride, thresholds
        self.dense_layers, self.min_length, self.dense_tail = set(dense_layers), min_length, dense_tail
        self.sparse_calls = 0

    def arguments(self, layer):
        if self.thresholds is not None:
            return self.thresholds.arguments(layer)
        return {"threshold": self.threshold, "stride": self.stride, "dense": layer in self.dense_layers}

    def __call__(self, module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
        """query [b, h, q, d], key and value [b, h_kv, kv, d] -> [b, q, h, d], None"""
        window = kwargs.get("sliding_window")
        prompt = query.shape[2] > 1 and attention_mask is None and dropout == 0 and module.is_causal and window is None
        if not prompt:
            return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling,
                                          **kwargs)
        self.sparse_calls += 1
        out = dsv4_kernels.xattn_prefill(query, key, value, softmax_scale=scaling, min_length=self.min_length,
                                         dense_tail=self.dense_tail, **self.arguments(module.layer_idx))
        return out.swapaxes(1, 2), None


def use_xattention(model, **options):
    """Switches a model to XAttention; returns the attention object."""
    attention = XAttention(**options)
    AttentionInterface.register(NAME, attention)
    model.set_attn_implementation(NAME)
    return attention
