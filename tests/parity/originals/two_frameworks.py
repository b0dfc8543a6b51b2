"""Document 004: ScaledDotProductAttention and MultiHeadAttention (its TensorFlow part is apart).

The classes compute what the document's listings compute, statement for statement, with comments in
English. Nothing needed correction; the unused `residual` is left out.

They hide keys with -1e9: a query without keys gets the mean of all values here and 0 in heed. The
examples leave each query a key.
"""

from typing import List, Optional, Tuple

import torch
from torch import nn

from documents import Example, sources
from documents.masks import masks_for


class ScaledDotProductAttention(nn.Module):
    """softmax(Q K^T / sqrt(d_k)) V, and its weights."""

    def __init__(self, d_k: int) -> None:
        super().__init__()
        self.d_k = d_k

    def forward(
        self,
        Q: torch.Tensor,
        K: torch.Tensor,
        V: torch.Tensor,
        attn_mask: Optional[torch.Tensor] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Q [B, H, L, D], K [B, H, S, D], V [B, H, S, Dv]; attn_mask [B, H, L, S]."""
        scores = torch.matmul(Q, K.transpose(-2, -1)) / (self.d_k**0.5)
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask == 0, -1e9)
        attn = torch.softmax(scores, dim=-1)
        context = torch.matmul(attn, V)
        return context, attn


class MultiHeadAttention(nn.Module):
    """Projections W_Q, W_K, W_V and fc; returns the weights too."""

    def __init__(self, d_model: int, n_head: int, d_k: int, d_v: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.d_k = d_k
        self.d_v = d_v
        self.W_Q = nn.Linear(d_model, d_k * n_head)
        self.W_K = nn.Linear(d_model, d_k * n_head)
        self.W_V = nn.Linear(d_model, d_v * n_head)
        self.fc = nn.Linear(n_head * d_v, d_model)
        self.attention = ScaledDotProductAttention(d_k)

    def forward(
        self,
        Q: torch.Tensor,
        K: torch.Tensor,
        V: torch.Tensor,
        attn_mask: Optional[torch.Tensor] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Q [B, L, E], K and V [B, S, E]; attn_mask [B, L, S]."""
        batch_size = Q.size(0)
        q_s = self.W_Q(Q).view(batch_size, -1, self.n_head, self.d_k).transpose(1, 2)
        k_s = self.W_K(K).view(batch_size, -1, self.n_head, self.d_k).transpose(1, 2)
        v_s = self.W_V(V).view(batch_size, -1, self.n_head, self.d_v).transpose(1, 2)
        if attn_mask is not None:
            attn_mask = attn_mask.unsqueeze(1).repeat(1, self.n_head, 1, 1)
        context, attn = self.attention(q_s, k_s, v_s, attn_mask=attn_mask)
        context = context.transpose(1, 2).contiguous()
        context = context.view(batch_size, -1, self.n_head * self.d_v)
        output = self.fc(context)
        return output, attn


def examples() -> List[Example]:
    """Self- and cross-attention of each class, drawn from torch's generator."""
    batch, width, heads = 3, 32, 4
    result = []
    for kind, length, keys in (("self", 6, 6), ("cross", 5, 7)):
        headed = masks_for(batch, length, keys, head_axis=True)
        flat = masks_for(batch, length, keys, head_axis=False)
        split = {
            "query": torch.randn(batch, heads, length, 8),
            "key": torch.randn(batch, heads, keys, 8),
            "value": torch.randn(batch, heads, keys, 8 if kind == "self" else 5),
        }
        args = {"d_k": 8}
        result.append(Example(ScaledDotProductAttention(**args), args, split, headed, kind))
        inputs = sources(kind, batch, length, keys, width)
        args = {"d_model": width, "n_head": heads, "d_k": 7, "d_v": 6}
        result.append(Example(MultiHeadAttention(**args), args, inputs, flat, kind))
    return result
