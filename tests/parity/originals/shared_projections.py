"""SelfAttention, whose heads share one projection of each kind, and MultiHeadAttention."""

import math
from typing import List, Optional, Tuple

import torch
from torch import nn

from originals import Example, sources
from originals.formulas import attention, merge_heads, split_heads
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
        self,
        values: torch.Tensor,
        keys: torch.Tensor,
        query: torch.Tensor,
        mask: Optional[torch.Tensor] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """values and keys [B, S, E], query [B, L, E]; mask broadcastable to [B, H, L, S]."""
        output, weights = attention(
            self.queries(split_heads(query, self.heads)),
            self.keys(split_heads(keys, self.heads)),
            self.values(split_heads(values, self.heads)),
            mask,
            self.temperature,
            fill=-1e20,
        )
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
        self,
        Q: torch.Tensor,
        K: torch.Tensor,
        V: torch.Tensor,
        mask: Optional[torch.Tensor] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Q [B, L, E], K and V [B, S, E]; mask broadcastable to [B, H, L, S]."""
        output, weights = attention(
            split_heads(self.W_q(Q), self.heads),
            split_heads(self.W_k(K), self.heads),
            split_heads(self.W_v(V), self.heads),
            mask,
            self.temperature,
            fill=-1e9,
            dropout=self.dropout,
            training=self.training,
        )
        return self.W_o(merge_heads(output)), weights


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
