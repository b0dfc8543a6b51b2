# SPDX-License-Identifier: BSD-3-Clause
"""heed's attention for the models of transformers 5.

    torch.ops.load_library("libheed_ops.so")
    heed_transformers.register()
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="heed")

Scores are those of the model's own attention, or there is an error that names what heed does not take:
models hand their attention more than queries, keys, values and a mask.
"""

import functools
from typing import Any, Optional, Tuple

import torch
from transformers import MODEL_MAPPING
from transformers.masking_utils import AttentionMaskInterface, eager_mask, sdpa_mask
from transformers.modeling_utils import AttentionInterface

# What models hand to every attention, and what has no part in scores, or a part that the mask has.
HARMLESS = {
    "cache_position", "deterministic", "max_length_k", "max_length_q", "num_items_in_batch",
    "output_hidden_states", "output_router_logits", "position_ids", "return_dict", "seq_idx",
    "sliding_window", "use_cache",
}
# What changes scores, or the result, in a way that heed has not.
REFUSED = {
    "block_indices": "blocks of keys that each query sees",
    "cu_seq_lens_k": "packed sequences: leave it out, and give position_ids that begin again",
    "cu_seq_lens_q": "packed sequences: leave it out, and give position_ids that begin again",
    "indices": "keys that each query sees",
    "output_attentions": "the weights, which attn_implementation='eager' returns",
    "sinks": "sinks that differ between queries",
}


def refuse(name: str) -> None:
    reason = f" ({REFUSED[name]})" if name in REFUSED else ""
    raise ValueError(
        f"heed_attention: {name} must be None: heed's attention does not take it{reason}; use another "
        "attn_implementation, such as 'sdpa' or 'eager', for this model"
    )


def four_dimensional(name: str, scores: torch.Tensor, keys: int) -> torch.Tensor:
    """Scores, or which are seen, as [B or 1, H or 1, L or 1, S]; fewer dimensions are the last ones."""
    if scores.dim() > 4:
        raise ValueError(f"heed_attention: {name} must have at most 4 dimensions; {list(scores.shape)}")
    while scores.dim() < 4:
        scores = scores.unsqueeze(0)
    return scores.expand(-1, -1, -1, keys)


def visibility(
    query: torch.Tensor,
    key: torch.Tensor,
    attention_mask: Optional[torch.Tensor],
    position_bias: Optional[torch.Tensor],
    causal: bool,
) -> dict:
    """heed's mask, bias, causal and top_left."""
    length, keys = query.shape[2], key.shape[2]
    options = {"mask": None, "bias": None, "causal": False, "top_left": False}
    if position_bias is not None:
        options["bias"] = four_dimensional("position_bias", position_bias, keys)
    if attention_mask is None:
        if causal and length != 1 and length != keys:
            options["top_left"] = True  # transformers' query i sees keys j <= i
        options["causal"] = causal
        return options
    mask = four_dimensional("attention_mask", attention_mask, keys)
    if mask.dtype == torch.bool:
        options["mask"] = mask
    elif mask.is_floating_point():
        options["bias"] = mask if options["bias"] is None else options["bias"] + mask
    else:
        raise ValueError(
            f"heed_attention: attention_mask dtype ({mask.dtype}) must be bool or floating"
        )
    return options


def heed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Optional[torch.Tensor] = None,
    scaling: Optional[float] = None,
    dropout: float = 0.0,
    is_causal: Optional[bool] = None,
    softcap: Optional[float] = None,
    s_aux: Optional[torch.Tensor] = None,
    position_bias: Optional[torch.Tensor] = None,
    **others: Any,
) -> Tuple[torch.Tensor, None]:
    """query [B, H, L, D], key and value [B, G, S, D], the mask of heed_mask -> [B, L, H, D]

    A floating mask and position_bias are added to the scores; s_aux has the sinks, [H]. Anything else
    that changes scores must be None, or it is an error.
    """
    for name, given in others.items():
        if given is not None and given is not False and name not in HARMLESS:
            refuse(name)
    batch = max(query.shape[0], key.shape[0])  # queries that are learned have no batch
    if query.shape[0] != key.shape[0]:
        query, key, value = (x.expand(batch, -1, -1, -1) for x in (query, key, value))
    if is_causal is None and attention_mask is None and not hasattr(module, "is_causal"):
        raise ValueError(
            f"heed_attention: attention_mask must be given, or is_causal: {type(module).__name__} does "
            "not say which it is"
        )
    causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
    output = torch.ops.heed.attend(
        query, key, value, **visibility(query, key, attention_mask, position_bias, causal),
        dropout=dropout, scale=scaling, softcap=softcap, sinks=s_aux)
    return output.transpose(1, 2), None


@torch.compiler.assume_constant_result
@functools.lru_cache(maxsize=None)
def supports_sdpa(config: type) -> bool:
    """Whether all attentions of the model take bool masks, and are causal where is_causal says so."""
    model = MODEL_MAPPING.get(config, None)
    model = model[0] if isinstance(model, (tuple, list)) else model
    return getattr(model, "_supports_sdpa", False)


def heed_mask(
    q_length: int,
    kv_length: int,
    allow_is_causal_skip: bool = True,
    config: Any = None,
    **others: Any,
) -> Optional[torch.Tensor]:
    """bool [B, 1, L, S], with sliding windows; None where is_causal says it all. Floating, as for eager
    attention, for models that may have attentions which add it to scores themselves."""
    sizes = {"q_length": q_length, "kv_length": kv_length, "config": config}
    if not supports_sdpa(type(config)):
        return eager_mask(**sizes, **{**others, "allow_is_bidirectional_skip": False})
    # Of a cache that is not full, the queries are not the last positions.
    aligned = q_length == 1 or q_length == kv_length
    return sdpa_mask(**sizes, allow_is_causal_skip=allow_is_causal_skip and aligned, **others)


def register() -> None:
    """Makes attn_implementation="heed" known to transformers. heed's library must have been loaded."""
    if not hasattr(torch.ops.heed, "attend"):
        raise RuntimeError(
            "heed_transformers.register: heed::attend is not registered: "
            'torch.ops.load_library("libheed_ops.so") comes first'
        )
    AttentionInterface.register("heed", heed_attention)
    AttentionMaskInterface.register("heed", heed_mask)
