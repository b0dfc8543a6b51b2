"""Document 000: Attention, AttentionV1, MultiHeadAttention and GroupQueryAttention.

The classes compute what the document's listings compute, statement for statement, with comments in
English. Its four listings hold no typing error, so nothing is corrected; only its test code, which
runs on import, is left out (`examples` takes its sizes and its mask from there).

Two things to know when comparing with heed:
- A query whose mask hides every key gives NaN here and 0 in heed. The examples leave each query a
  key.
- The document describes a mask as [B, L, L]. MultiHeadAttention and GroupQueryAttention would
  broadcast its B over the heads; they get [B, 1, L, L]. heed takes both.
"""

from typing import Dict, List, Optional

import torch
from torch import nn

from documents import Example


class Attention(nn.Module):
    """Single-head self-attention."""

    def __init__(self, emb_dim: int, dropout: float = 0.1) -> None:
        super(Attention, self).__init__()
        self.emb_dim = emb_dim
        self.fc_q = nn.Linear(emb_dim, emb_dim)
        self.fc_k = nn.Linear(emb_dim, emb_dim)
        self.fc_v = nn.Linear(emb_dim, emb_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """x [B, L, E]; mask [B, L, L], nonzero = may attend; returns [B, L, E]."""
        Q = self.fc_q(x)  # [B, L, E]
        K = self.fc_k(x)  # [B, L, E]
        V = self.fc_v(x)  # [B, L, E]

        attention_scores = Q @ K.transpose(-1, -2)  # [B, L, L]
        attention_scores = attention_scores / (self.emb_dim**0.5)
        if mask is not None:
            attention_scores = attention_scores.masked_fill(mask == 0, float("-inf"))

        attention_weights = torch.softmax(attention_scores, dim=-1)  # [B, L, L]
        attention_weights = self.dropout(attention_weights)
        output = attention_weights @ V  # [B, L, E]
        return output


class AttentionV1(nn.Module):
    """Attention with the three projections merged into one."""

    def __init__(self, emb_dim: int, dropout: float = 0.1) -> None:
        super(AttentionV1, self).__init__()
        self.emb_dim = emb_dim
        self.qkv = nn.Linear(emb_dim, emb_dim * 3)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """x [B, L, E]; mask [B, L, L], nonzero = may attend; returns [B, L, E]."""
        QKV = self.qkv(x)  # [B, L, 3E]
        Q, K, V = torch.split(QKV, self.emb_dim, dim=-1)  # each [B, L, E]

        attention_scores = Q @ K.transpose(-1, -2) / (self.emb_dim**0.5)  # [B, L, L]
        if mask is not None:
            attention_scores = attention_scores.masked_fill(mask == 0, float("-inf"))

        attention_weights = torch.softmax(attention_scores, dim=-1)
        attention_weights = self.dropout(attention_weights)
        output = attention_weights @ V  # [B, L, E]
        return output


class MultiHeadAttention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, emb_dim: int, head_nums: int, dropout: float = 0.1) -> None:
        super(MultiHeadAttention, self).__init__()
        assert emb_dim % head_nums == 0, "emb_dim must be divisible by head_nums"
        self.emb_dim = emb_dim
        self.head_num = head_nums
        self.head_dim = emb_dim // head_nums
        self.dropout = nn.Dropout(dropout)

        self.fc_q = nn.Linear(emb_dim, emb_dim)
        self.fc_k = nn.Linear(emb_dim, emb_dim)
        self.fc_v = nn.Linear(emb_dim, emb_dim)
        self.fc_out = nn.Linear(emb_dim, emb_dim)

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """x [B, L, E]; mask broadcastable to [B, H, L, L]; returns [B, L, E]."""
        batch_size, seq_len, _ = x.size()

        Q = self.fc_q(x)  # [B, L, E]
        K = self.fc_k(x)  # [B, L, E]
        V = self.fc_v(x)  # [B, L, E]

        Q_heads = Q.view(batch_size, seq_len, self.head_num, self.head_dim).permute(0, 2, 1, 3)
        K_heads = K.view(batch_size, seq_len, self.head_num, self.head_dim).transpose(1, 2)
        V_heads = V.view(batch_size, seq_len, self.head_num, self.head_dim).transpose(1, 2)

        attention_scores = Q_heads @ K_heads.transpose(-1, -2) / (self.head_dim**0.5)
        if mask is not None:
            attention_scores = attention_scores.masked_fill(mask == 0, float("-inf"))

        attention_weights = torch.softmax(attention_scores, dim=-1)  # [B, H, L, L]
        attention_weights = self.dropout(attention_weights)
        output = attention_weights @ V_heads  # [B, H, L, D]

        output = output.transpose(1, 2).contiguous()  # [B, L, H, D]
        output = output.view(batch_size, seq_len, -1)  # [B, L, E]
        output = self.fc_out(output)
        return output


class GroupQueryAttention(nn.Module):
    """Multi-head self-attention whose query heads share key/value heads in groups."""

    def __init__(self, emb_dim: int, head_num: int, group_num: int) -> None:
        super(GroupQueryAttention, self).__init__()
        assert emb_dim % head_num == 0, "emb_dim must be divisible by head_num"
        assert head_num % group_num == 0, "head_num must be divisible by group_num"

        self.emb_dim = emb_dim
        self.head_num = head_num
        self.group_num = group_num
        self.head_dim = emb_dim // head_num

        self.fc_q = nn.Linear(emb_dim, emb_dim)
        self.fc_k = nn.Linear(emb_dim, group_num * self.head_dim)
        self.fc_v = nn.Linear(emb_dim, group_num * self.head_dim)
        self.fc_o = nn.Linear(emb_dim, emb_dim)

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """x [B, L, E]; mask broadcastable to [B, H, L, L]; returns [B, L, E]."""
        batch_size, seq_len, _ = x.size()

        Q = self.fc_q(x)  # [B, L, E]
        K = self.fc_k(x)  # [B, L, G * D]
        V = self.fc_v(x)  # [B, L, G * D]

        Q = Q.view(batch_size, seq_len, self.head_num, self.head_dim)
        K = K.view(batch_size, seq_len, self.group_num, self.head_dim)
        V = V.view(batch_size, seq_len, self.group_num, self.head_dim)

        Q = Q.transpose(1, 2)  # [B, H, L, D]
        K = K.transpose(1, 2)  # [B, G, L, D]
        V = V.transpose(1, 2)  # [B, G, L, D]

        K = K.repeat_interleave(self.head_num // self.group_num, dim=1)  # [B, H, L, D]
        V = V.repeat_interleave(self.head_num // self.group_num, dim=1)  # [B, H, L, D]

        attention_scores = (Q @ K.transpose(2, 3)) / (self.head_dim**0.5)
        if mask is not None:
            attention_scores = attention_scores.masked_fill(mask == 0, float("-inf"))

        attention_weights = torch.softmax(attention_scores, dim=-1)  # [B, H, L, L]
        output = attention_weights @ V  # [B, H, L, D]

        output = output.transpose(1, 2).contiguous()  # [B, L, H, D]
        output = output.view(batch_size, seq_len, -1)  # [B, L, E]
        output = self.fc_o(output)
        return output


BATCH, LENGTH, EMB_DIM, HEADS, GROUPS = 3, 10, 128, 8, 4


def common_masks() -> Dict[str, Optional[torch.Tensor]]:
    """Masks that every class takes."""
    itself = torch.eye(LENGTH, dtype=torch.int64)
    return {
        "none": None,
        "causal": torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(),
        # [1, L, L], any nonzero integer lets through.
        "integer": torch.randint(0, 3, (1, LENGTH, LENGTH)).maximum(itself),
    }


def random_mask(*shape: int) -> torch.Tensor:
    return torch.eye(LENGTH, dtype=torch.bool) | (torch.rand(shape) < 0.5)


def random_padding() -> torch.Tensor:
    """[B, L], int64 as in the document's test code; the first key is always there."""
    return torch.randint(0, 2, (BATCH, LENGTH)).index_fill(1, torch.tensor([0]), 1)


def single_head_masks() -> Dict[str, Optional[torch.Tensor]]:
    return {
        **common_masks(),
        "batch": random_mask(BATCH, LENGTH, LENGTH),
        "expanded": random_padding().unsqueeze(1).expand(BATCH, LENGTH, LENGTH),
    }


def multi_head_masks() -> Dict[str, Optional[torch.Tensor]]:
    return {
        **common_masks(),
        "batch": random_mask(BATCH, 1, LENGTH, LENGTH),
        "heads": random_mask(BATCH, HEADS, LENGTH, LENGTH),
        "expanded": random_padding()
        .unsqueeze(1)
        .unsqueeze(2)
        .expand(BATCH, HEADS, LENGTH, LENGTH),
    }


def examples() -> List[Example]:
    """One of each class, drawn from torch's generator."""

    def example(module: nn.Module, args: Dict[str, int], masks: Dict) -> Example:
        return Example(module(**args), args, {"x": torch.randn(BATCH, LENGTH, EMB_DIM)}, masks)

    emb_dim = {"emb_dim": EMB_DIM}
    grouped = {**emb_dim, "head_num": HEADS, "group_num": GROUPS}
    return [
        example(Attention, emb_dim, single_head_masks()),
        example(AttentionV1, emb_dim, single_head_masks()),
        example(MultiHeadAttention, {**emb_dim, "head_nums": HEADS}, multi_head_masks()),
        example(GroupQueryAttention, grouped, multi_head_masks()),
    ]
