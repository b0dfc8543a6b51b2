# SPDX-License-Identifier: BSD-3-Clause
"""SelfAttention, whose heads share one projection of each kind, and MultiHeadAttention."""

import math
from typing import List, Optional, Tuple

import torch
from torch import Tensor, nn

from originals import Example, sources
from originals.formulas import attention, merge_heads, multi_head_attention, split_heads
from originals.masks import masks_for


class SelfAttention(nn.Module):
    """Projections of a head's width; the temperature is that of the model's, sqrt(embed_size)."""

    def __init__(self, embed_size: int, heads: int) -> None:
        super().__init__()
        head_dim = embed_size // heads
        self.heads = heads
        self.temperature = math.sqrt(embed_size)
        self.values = nn.Linear(head_dim, head_dim, bias=False)
        self.keys = nn.Linear(head_dim, head_dim, bias=False)
        self.queries = nn.Linear(head_dim, head_dim, bias=False)
        self.fc_out = nn.Linear(heads * head_dim, embed_size)

    def forward(
        self, values: Tensor, keys: Tensor, query: Tensor, mask: Optional[Tensor] = None
    ) -> Tuple[Tensor, Tensor]:
        """values and keys [B, S, E], query [B, L, E]; mask broadcastable to [B, H, L, S]."""
        query = self.queries(split_heads(query, self.heads))
        keys = self.keys(split_heads(keys, self.heads))
        values = self.values(split_heads(values, self.heads))
        output, weights = attention(query, keys, values, mask, self.temperature, fill=-1e20)
        return self.fc_out(merge_heads(output)), weights


class MultiHeadAttention(nn.Module):
    """Projections W_q, W_k, W_v and W_o."""

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads = num_heads
        self.temperature = math.sqrt(d_model // num_heads)
        self.dropout = dropout
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def forward(
        self, Q: Tensor, K: Tensor, V: Tensor, mask: Optional[Tensor] = None
    ) -> Tuple[Tensor, Tensor]:
        """Q [B, L, E], K and V [B, S, E]; mask broadcastable to [B, H, L, S]."""
        output, weights = multi_head_attention(
            self.W_q(Q), self.W_k(K), self.W_v(V), self.heads, mask, self.temperature, -1e9,
            self.dropout, self.training,
        )
        return self.W_o(output), weights


def examples() -> List[Example]:
    """Self- and cross-attention of each class, drawn from torch's generator."""
    batch, width, heads = 3, 32, 4
    result = []
    for kind, length, keys in (("self", 6, 6), ("cross", 5, 7)):
        masks = masks_for(batch, length, keys, head_axis=True)
        inputs = sources(kind, batch, length, keys, width)
        args = {"embed_size": width, "heads": heads}
        in_its_order = {name: inputs[name] for name in ("value", "key", "query")}
        result.append(Example(SelfAttention(**args), args, in_its_order, masks, kind))
        args = {"d_model": width, "num_heads": heads}
        result.append(Example(MultiHeadAttention(**args), args, inputs, masks, kind))
    return result
