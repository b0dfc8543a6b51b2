# SPDX-License-Identifier: BSD-3-Clause
"""ScaledDotProductAttention and three classes that its text names MultiHeadAttention.

A word tells the three apart: Native is written by hand, PostNorm has a residual connection, and
Tutorial is of a tutorial on building transformers.
"""

import math
from typing import List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from originals import Example, sources, split_sources
from originals.formulas import attention, merge_heads, multi_head_attention, split_heads
from originals.masks import masks_for


class ScaledDotProductAttention(nn.Module):
    """The formula for heads that are split already."""

    def __init__(self, temperature: float, attn_dropout: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature
        self.dropout = attn_dropout

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None
    ) -> Tuple[Tensor, Tensor]:
        """q [B, H, L, D], k [B, H, S, D], v [B, H, S, Dv]; mask broadcastable to [B, H, L, S]."""
        return attention(q, k, v, mask, self.temperature, -1e9, self.dropout, self.training)


class NativeMultiHeadAttention(nn.Module):
    """Projections q_linear, k_linear, v_linear and out."""

    def __init__(self, heads: int, d_model: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads = heads
        self.temperature = math.sqrt(d_model // heads)
        self.dropout = dropout
        self.q_linear = nn.Linear(d_model, d_model)
        self.k_linear = nn.Linear(d_model, d_model)
        self.v_linear = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """q [B, L, E], k and v [B, S, E]; mask broadcastable to [B, H, L, S]."""
        output, _ = multi_head_attention(
            self.q_linear(q), self.k_linear(k), self.v_linear(v), self.heads, mask,
            self.temperature, -1e9, self.dropout, self.training,
        )
        return self.out(output)


class PostNormMultiHeadAttention(nn.Module):
    """LayerNorm(q + attention), its projections w_qs, w_ks, w_vs and fc without biases."""

    def __init__(self, n_head: int, d_model: int, d_k: int, d_v: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads = n_head
        self.temperature = math.sqrt(d_k)
        self.dropout = nn.Dropout(dropout)
        self.w_qs = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_ks = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_vs = nn.Linear(d_model, n_head * d_v, bias=False)
        self.fc = nn.Linear(n_head * d_v, d_model, bias=False)
        self.layer_norm = nn.LayerNorm(d_model, eps=1e-6)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None
    ) -> Tuple[Tensor, Tensor]:
        """q [B, L, E], k and v [B, S, E]; mask [B, L, S]."""
        mask = None if mask is None else mask.unsqueeze(1)
        output, weights = multi_head_attention(
            self.w_qs(q), self.w_ks(k), self.w_vs(v), self.heads, mask, self.temperature, -1e9,
            0.1, self.training,  # dropout of weights, whatever that of the output
        )
        return self.layer_norm(q + self.dropout(self.fc(output))), weights


class TutorialMultiHeadAttention(nn.Module):
    """On LibTorch's attention; packed_proj, or three projections of inputs that differ in size.

    Its dropout falls in eval mode too. Its text forgets to pass attn_mask on; here it is used.
    """

    packed: torch.jit.Final[bool]  # TorchScript compiles the branch taken only

    def __init__(
        self, E_q: int, E_k: int, E_v: int, E_total: int, nheads: int, dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        assert E_total % nheads == 0, "E_total must be divisible by nheads"
        self.heads = nheads
        self.dropout = dropout
        self.packed = E_q == E_k == E_v
        if self.packed:
            self.packed_proj = nn.Linear(E_q, 3 * E_total, bias=bias)
        else:
            self.q_proj = nn.Linear(E_q, E_total, bias=bias)
            self.k_proj = nn.Linear(E_k, E_total, bias=bias)
            self.v_proj = nn.Linear(E_v, E_total, bias=bias)
        self.out_proj = nn.Linear(E_total, E_q, bias=bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None,
        is_causal: bool = False,
    ) -> Tensor:
        """query [B, L, E_q], key [B, S, E_k], value [B, S, E_v]; attn_mask [B, L, S]."""
        if self.packed:
            query = self.packed_proj(query).chunk(3, dim=-1)[0]
            key = self.packed_proj(key).chunk(3, dim=-1)[1]
            value = self.packed_proj(value).chunk(3, dim=-1)[2]
        else:
            query, key, value = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        output = F.scaled_dot_product_attention(
            split_heads(query, self.heads),
            split_heads(key, self.heads),
            split_heads(value, self.heads),
            None if attn_mask is None else attn_mask.unsqueeze(1) != 0,
            dropout_p=self.dropout,
            is_causal=is_causal,
        )
        return self.out_proj(merge_heads(output))


def tutorial_examples(batch: int) -> List[Example]:
    """With equal and with different input sizes, with and without biases."""
    result = []
    for kind, length, keys, sizes, bias in (
        ("self", 6, 6, (32, 32, 32), True),
        ("cross", 5, 7, (32, 32, 32), False),
        ("sizes", 5, 7, (32, 20, 12), True),
    ):
        args = dict(zip(("E_q", "E_k", "E_v"), sizes), E_total=48, nheads=4, bias=bias)
        masks = masks_for(batch, length, keys, head_axis=False)
        inputs = sources(kind, batch, length, keys, *sizes)
        result.append(Example(TutorialMultiHeadAttention(**args), args, inputs, masks, kind))
    return result


def examples() -> List[Example]:
    """Self- and cross-attention of each class, drawn from torch's generator."""
    batch, width, heads = 3, 32, 4
    result = []
    for kind, length, keys in (("self", 6, 6), ("cross", 5, 7)):
        headed = masks_for(batch, length, keys, head_axis=True)
        flat = masks_for(batch, length, keys, head_axis=False)
        args = {"temperature": 8**0.5}
        split = split_sources(kind, batch, heads, length, keys)
        result.append(Example(ScaledDotProductAttention(**args), args, split, headed, kind))
        inputs = sources(kind, batch, length, keys, width)
        args = {"heads": heads, "d_model": width}
        result.append(Example(NativeMultiHeadAttention(**args), args, inputs, headed, kind))
        args = {"n_head": heads, "d_model": width, "d_k": 8, "d_v": 6}
        result.append(Example(PostNormMultiHeadAttention(**args), args, inputs, flat, kind))
    return result + tutorial_examples(batch)
