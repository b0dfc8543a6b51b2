"""Document 003: ScaledDotProductAttention and three classes named MultiHeadAttention.

The classes compute what the document's listings compute, statement for statement, with comments in
English. The three MultiHeadAttention are told apart by a word: Native (section 2.2.2), PostNorm
(2.2.3, first) and Tutorial (2.2.3, second).

- The tutorial's class takes `attn_mask` and forgets to pass it on; here it reaches the attention.
  It compares inputs by identity to pick one packed product or three slices of it, which compute the
  same numbers; TorchScript knows no identity, so the slices are always taken.
- The others hide keys with -1e9: a query without keys gets the mean of all values here and 0 in
  heed. The examples leave each query a key.
"""

import math
from typing import List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from documents import Example, sources
from documents.masks import masks_for


class ScaledDotProductAttention(nn.Module):
    """softmax(q k^T / temperature) v, and its weights."""

    def __init__(self, temperature: float, attn_dropout: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature
        self.dropout = nn.Dropout(attn_dropout)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: Optional[torch.Tensor] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """q [B, H, L, D], k [B, H, S, D], v [B, H, S, Dv]."""
        attn = torch.matmul(q / self.temperature, k.transpose(2, 3))
        if mask is not None:
            attn = attn.masked_fill(mask == 0, -1e9)
        attn = self.dropout(F.softmax(attn, dim=-1))
        output = torch.matmul(attn, v)
        return output, attn


class NativeMultiHeadAttention(nn.Module):
    """Projections q_linear, k_linear, v_linear and out."""

    def __init__(self, heads: int, d_model: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.d_model = d_model
        self.d_k = d_model // heads
        self.h = heads
        self.q_linear = nn.Linear(d_model, d_model)
        self.k_linear = nn.Linear(d_model, d_model)
        self.v_linear = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(d_model, d_model)

    def attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        scores = F.softmax(scores, dim=-1)
        scores = self.dropout(scores)
        output = torch.matmul(scores, v)
        return output

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """q [B, L, E], k and v [B, S, E]; mask broadcastable to [B, H, L, S]."""
        batch_size = q.size(0)
        q = self.q_linear(q).view(batch_size, -1, self.h, self.d_k).transpose(1, 2)
        k = self.k_linear(k).view(batch_size, -1, self.h, self.d_k).transpose(1, 2)
        v = self.v_linear(v).view(batch_size, -1, self.h, self.d_k).transpose(1, 2)
        scores = self.attention(q, k, v, mask)
        concat = scores.transpose(1, 2).contiguous().view(batch_size, -1, self.d_model)
        output = self.out(concat)
        return output


class PostNormMultiHeadAttention(nn.Module):
    """Projections w_qs, w_ks, w_vs and fc without biases, a residual connection and LayerNorm."""

    def __init__(
        self, n_head: int, d_model: int, d_k: int, d_v: int, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.n_head = n_head
        self.d_k = d_k
        self.d_v = d_v
        self.w_qs = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_ks = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_vs = nn.Linear(d_model, n_head * d_v, bias=False)
        self.fc = nn.Linear(n_head * d_v, d_model, bias=False)
        self.attention = ScaledDotProductAttention(temperature=d_k**0.5)
        self.dropout = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(d_model, eps=1e-6)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: Optional[torch.Tensor] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """q [B, L, E], k and v [B, S, E]; mask [B, L, S]."""
        d_k, d_v, n_head = self.d_k, self.d_v, self.n_head
        sz_b, len_q, len_k, len_v = q.size(0), q.size(1), k.size(1), v.size(1)
        residual = q
        q = self.w_qs(q).view(sz_b, len_q, n_head, d_k)
        k = self.w_ks(k).view(sz_b, len_k, n_head, d_k)
        v = self.w_vs(v).view(sz_b, len_v, n_head, d_v)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if mask is not None:
            mask = mask.unsqueeze(1)  # for the head axis
        q, attn = self.attention(q, k, v, mask=mask)
        q = q.transpose(1, 2).contiguous().view(sz_b, len_q, -1)
        q = self.dropout(self.fc(q))
        q += residual
        q = self.layer_norm(q)
        return q, attn


class TutorialMultiHeadAttention(nn.Module):
    """packed_proj, or q_proj, k_proj and v_proj where the inputs differ in size; out_proj."""

    __constants__ = ["_qkv_same_embed_dim", "bias"]  # TorchScript compiles the branch taken only

    def __init__(
        self,
        E_q: int,
        E_k: int,
        E_v: int,
        E_total: int,
        nheads: int,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.nheads = nheads
        self.dropout = dropout
        self._qkv_same_embed_dim = E_q == E_k and E_q == E_v
        if self._qkv_same_embed_dim:
            self.packed_proj = nn.Linear(E_q, E_total * 3, bias=bias)
        else:
            self.q_proj = nn.Linear(E_q, E_total, bias=bias)
            self.k_proj = nn.Linear(E_k, E_total, bias=bias)
            self.v_proj = nn.Linear(E_v, E_total, bias=bias)
        self.out_proj = nn.Linear(E_total, E_q, bias=bias)
        assert E_total % nheads == 0, "Embedding dim is not divisible by nheads"
        self.E_head = E_total // nheads
        self.bias = bias

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: Optional[torch.Tensor] = None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        """query [N, L, E_q], key [N, S, E_k], value [N, S, E_v]; attn_mask [N, L, S] bool."""
        if self._qkv_same_embed_dim:
            q_weight, k_weight, v_weight = torch.chunk(self.packed_proj.weight, 3, dim=0)
            if self.bias:
                q_bias, k_bias, v_bias = torch.chunk(self.packed_proj.bias, 3, dim=0)
                query = F.linear(query, q_weight, q_bias)
                key = F.linear(key, k_weight, k_bias)
                value = F.linear(value, v_weight, v_bias)
            else:
                query = F.linear(query, q_weight)
                key = F.linear(key, k_weight)
                value = F.linear(value, v_weight)
        else:
            query = self.q_proj(query)
            key = self.k_proj(key)
            value = self.v_proj(value)
        query = query.unflatten(-1, [self.nheads, self.E_head]).transpose(1, 2)
        key = key.unflatten(-1, [self.nheads, self.E_head]).transpose(1, 2)
        value = value.unflatten(-1, [self.nheads, self.E_head]).transpose(1, 2)
        if attn_mask is not None:
            attn_mask = attn_mask.unsqueeze(1) != 0
        attn_output = F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p=self.dropout, is_causal=is_causal
        )
        attn_output = attn_output.transpose(1, 2).flatten(-2)
        attn_output = self.out_proj(attn_output)
        return attn_output


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
        split = {
            "query": torch.randn(batch, heads, length, 8),
            "key": torch.randn(batch, heads, keys, 8),
            "value": torch.randn(batch, heads, keys, 8 if kind == "self" else 5),
        }
        result.append(Example(ScaledDotProductAttention(**args), args, split, headed, kind))
        inputs = sources(kind, batch, length, keys, width)
        args = {"heads": heads, "d_model": width}
        result.append(Example(NativeMultiHeadAttention(**args), args, inputs, headed, kind))
        args = {"n_head": heads, "d_model": width, "d_k": 8, "d_v": 6}
        result.append(Example(PostNormMultiHeadAttention(**args), args, inputs, flat, kind))
    return result + tutorial_examples(batch)
