"""heed's attention for the models of transformers 5.

    torch.ops.load_library("libheed_ops.so")
    transformers_attention.register()
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="heed")
"""

import torch
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface


def heed_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0,
                   is_causal=None, softcap=None, s_aux=None, **others):
    """query [B, H, L, D], key and value [B, G, S, D], the mask of heed_mask -> [B, L, H, D]"""
    causal = module.is_causal if is_causal is None else is_causal
    output = torch.ops.heed.attend(
        query, key, value, mask=attention_mask, causal=causal and attention_mask is None,
        dropout=dropout, scale=scaling, softcap=softcap, sinks=s_aux)
    return output.transpose(1, 2), None


def heed_mask(q_length, kv_length, allow_is_causal_skip=True, **others):
    """bool [B, 1, L, S], with sliding windows; None where `causal` says it all."""
    # heed gives the last query the position of the last key, unlike a cache that is not full.
    aligned = q_length == 1 or q_length == kv_length
    return sdpa_mask(q_length=q_length, kv_length=kv_length,
                     allow_is_causal_skip=allow_is_causal_skip and aligned, **others)


def register():
    AttentionInterface.register("heed", heed_attention)
    AttentionMaskInterface.register("heed", heed_mask)
