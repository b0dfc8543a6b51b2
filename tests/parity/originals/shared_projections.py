"""Document 001: SelfAttention and MultiHeadAttention.

The classes compute what the document's listings compute, statement for statement, with comments in
English. Typing errors corrected: `self.head` is `self.heads`, `v` is `V`, and
`scaled_out_product_attention` is the `scaled_dot_product_attention` that is called.

The listings hide keys with -1e20 and -1e9: a query without keys gets the mean of all values here and
0 in heed. The examples leave each query a key.
"""

import math
from typing import List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from documents import Example, sources
from documents.masks import masks_for


class SelfAttention(nn.Module):
    """Heads share one projection of each kind; scores are divided by sqrt(embed_size)."""

    def __init__(self, embed_size: int, heads: int) -> None:
        super().__init__()
        self.embed_size = embed_size
        self.heads = heads
        self.head_dim = embed_size // heads
        self.values = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.keys = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.queries = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.fc_out = nn.Linear(heads * self.head_dim, embed_size)

    def forward(
        self,
        values: torch.Tensor,
        keys: torch.Tensor,
        query: torch.Tensor,
        mask: Optional[torch.Tensor] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """values and keys [N, S, E], query [N, L, E]; mask broadcastable to [N, H, L, S]."""
        N = query.shape[0]
        value_len, key_len, query_len = values.shape[1], keys.shape[1], query.shape[1]

        values = values.reshape(N, value_len, self.heads, self.head_dim)
        keys = keys.reshape(N, key_len, self.heads, self.head_dim)
        queries = query.reshape(N, query_len, self.heads, self.head_dim)

        values = self.values(values)
        keys = self.keys(keys)
        queries = self.queries(queries)

        energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])
        energy = energy / (self.embed_size ** (1 / 2))
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))

        attention = torch.softmax(energy, dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", [attention, values])
        out = out.reshape(N, query_len, self.heads * self.head_dim)
        out = self.fc_out(out)
        return out, attention


class MultiHeadAttention(nn.Module):
    """Projections W_q, W_k, W_v and W_o; returns the weights too."""

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def scaled_dot_product_attention(
        self,
        Q: torch.Tensor,
        K: torch.Tensor,
        V: torch.Tensor,
        mask: Optional[torch.Tensor] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        attn_scores = torch.matmul(Q, K.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            attn_scores = attn_scores.masked_fill(mask == 0, -1e9)
        attn_weights = F.softmax(attn_scores, dim=-1)
        attn_weights = self.dropout(attn_weights)
        output = torch.matmul(attn_weights, V)
        return output, attn_weights

    def forward(
        self,
        Q: torch.Tensor,
        K: torch.Tensor,
        V: torch.Tensor,
        mask: Optional[torch.Tensor] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Q [B, L, E], K and V [B, S, E]; mask broadcastable to [B, H, L, S]."""
        batch_size = Q.size(0)
        Q = self.W_q(Q).view(batch_size, -1, self.num_heads, self.d_k).transpose(1, 2)
        K = self.W_k(K).view(batch_size, -1, self.num_heads, self.d_k).transpose(1, 2)
        V = self.W_v(V).view(batch_size, -1, self.num_heads, self.d_k).transpose(1, 2)
        attn_output, attn_weights = self.scaled_dot_product_attention(Q, K, V, mask)
        attn_output = attn_output.transpose(1, 2).contiguous().view(batch_size, -1, self.d_model)
        output = self.W_o(attn_output)
        return output, attn_weights


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
