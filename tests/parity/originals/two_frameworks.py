# SPDX-License-Identifier: BSD-3-Clause
"""The PyTorch half of a text on two frameworks; tensorflow_functions.py has the other.

ScaledDotProductAttention and MultiHeadAttention, without dropout.
"""

import math
from typing import List, Optional, Tuple

import torch
from torch import Tensor, nn

from originals import Example, sources, split_sources
from originals.formulas import attention, multi_head_attention
from originals.masks import masks_for


class ScaledDotProductAttention(nn.Module):
    """The formula for heads that are split already."""

    def __init__(self, d_k: int) -> None:
        super().__init__()
        self.temperature = math.sqrt(d_k)

    def forward(
        self, Q: Tensor, K: Tensor, V: Tensor, attn_mask: Optional[Tensor] = None
    ) -> Tuple[Tensor, Tensor]:
        """Q [B, H, L, D], K [B, H, S, D], V [B, H, S, Dv]; attn_mask [B, H, L, S]."""
        return attention(Q, K, V, attn_mask, self.temperature, fill=-1e9)


class MultiHeadAttention(nn.Module):
    """Projections W_Q, W_K, W_V and fc; heads of any width."""

    def __init__(self, d_model: int, n_head: int, d_k: int, d_v: int) -> None:
        super().__init__()
        self.heads = n_head
        self.temperature = math.sqrt(d_k)
        self.W_Q = nn.Linear(d_model, n_head * d_k)
        self.W_K = nn.Linear(d_model, n_head * d_k)
        self.W_V = nn.Linear(d_model, n_head * d_v)
        self.fc = nn.Linear(n_head * d_v, d_model)

    def forward(
        self, Q: Tensor, K: Tensor, V: Tensor, attn_mask: Optional[Tensor] = None
    ) -> Tuple[Tensor, Tensor]:
        """Q [B, L, E], K and V [B, S, E]; attn_mask [B, L, S]."""
        mask = None if attn_mask is None else attn_mask.unsqueeze(1)
        output, weights = multi_head_attention(
            self.W_Q(Q), self.W_K(K), self.W_V(V), self.heads, mask, self.temperature, fill=-1e9
        )
        return self.fc(output), weights


def examples() -> List[Example]:
    """Self- and cross-attention of each class, drawn from torch's generator."""
    batch, width, heads = 3, 32, 4
    result = []
    for kind, length, keys in (("self", 6, 6), ("cross", 5, 7)):
        headed = masks_for(batch, length, keys, head_axis=True)
        flat = masks_for(batch, length, keys, head_axis=False)
        split = split_sources(kind, batch, heads, length, keys)
        args = {"d_k": 8}
        result.append(Example(ScaledDotProductAttention(**args), args, split, headed, kind))
        inputs = sources(kind, batch, length, keys, width)
        args = {"d_model": width, "n_head": heads, "d_k": 7, "d_v": 6}
        result.append(Example(MultiHeadAttention(**args), args, inputs, flat, kind))
    return result
