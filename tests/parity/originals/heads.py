# SPDX-License-Identifier: BSD-3-Clause
"""From one head to shared ones: Attention, AttentionV1, MultiHeadAttention, GroupQueryAttention.

Classes with several heads take masks with a head axis, [B, 1 or H, L, L]; heed also [B, L, L].
Hidden scores are -inf.
"""

import math
from typing import Dict, List, Optional

import torch
from torch import Tensor, nn

from originals import Example
from originals.formulas import attention, merge_heads, multi_head_attention, split_heads


class Attention(nn.Module):
    """One head of the model's whole width."""

    def __init__(self, emb_dim: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.temperature = math.sqrt(emb_dim)
        self.dropout = dropout
        self.fc_q = nn.Linear(emb_dim, emb_dim)
        self.fc_k = nn.Linear(emb_dim, emb_dim)
        self.fc_v = nn.Linear(emb_dim, emb_dim)

    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """x [B, L, E]; mask [B or 1, L, L] or [L, L]; returns [B, L, E]."""
        query, key, value = self.fc_q(x), self.fc_k(x), self.fc_v(x)
        return attention(
            query, key, value, mask, self.temperature, dropout=self.dropout, training=self.training
        )[0]


class AttentionV1(nn.Module):
    """Attention whose projections are one matrix."""

    def __init__(self, emb_dim: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.temperature = math.sqrt(emb_dim)
        self.dropout = dropout
        self.qkv = nn.Linear(emb_dim, 3 * emb_dim)

    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """x [B, L, E]; mask [B or 1, L, L] or [L, L]; returns [B, L, E]."""
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        return attention(
            query, key, value, mask, self.temperature, dropout=self.dropout, training=self.training
        )[0]


class MultiHeadAttention(nn.Module):
    """Heads side by side, each on its part of the width."""

    def __init__(self, emb_dim: int, head_nums: int, dropout: float = 0.1) -> None:
        super().__init__()
        assert emb_dim % head_nums == 0, "emb_dim must be divisible by head_nums"
        self.heads = head_nums
        self.temperature = math.sqrt(emb_dim // head_nums)
        self.dropout = dropout
        self.fc_q = nn.Linear(emb_dim, emb_dim)
        self.fc_k = nn.Linear(emb_dim, emb_dim)
        self.fc_v = nn.Linear(emb_dim, emb_dim)
        self.fc_out = nn.Linear(emb_dim, emb_dim)

    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """x [B, L, E]; mask broadcastable to [B, H, L, L]; returns [B, L, E]."""
        output, _ = multi_head_attention(
            self.fc_q(x), self.fc_k(x), self.fc_v(x), self.heads, mask, self.temperature,
            dropout=self.dropout, training=self.training,
        )
        return self.fc_out(output)


class GroupQueryAttention(nn.Module):
    """MultiHeadAttention with fewer heads for keys and values, which groups of queries share."""

    def __init__(self, emb_dim: int, head_num: int, group_num: int) -> None:
        super().__init__()
        assert emb_dim % head_num == 0, "emb_dim must be divisible by head_num"
        assert head_num % group_num == 0, "head_num must be divisible by group_num"
        head_dim = emb_dim // head_num
        self.heads = head_num
        self.groups = group_num
        self.temperature = math.sqrt(head_dim)
        self.fc_q = nn.Linear(emb_dim, emb_dim)
        self.fc_k = nn.Linear(emb_dim, group_num * head_dim)
        self.fc_v = nn.Linear(emb_dim, group_num * head_dim)
        self.fc_o = nn.Linear(emb_dim, emb_dim)

    def shared(self, x: Tensor) -> Tensor:
        """[B, L, G * D] -> [B, H, L, D]: a head's copies are next to each other."""
        return split_heads(x, self.groups).repeat_interleave(self.heads // self.groups, dim=1)

    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """x [B, L, E]; mask broadcastable to [B, H, L, L]; returns [B, L, E]."""
        query = split_heads(self.fc_q(x), self.heads)
        key, value = self.shared(self.fc_k(x)), self.shared(self.fc_v(x))
        return self.fc_o(merge_heads(attention(query, key, value, mask, self.temperature)[0]))


BATCH, LENGTH, EMB_DIM, HEADS, GROUPS = 3, 10, 128, 8, 4


def common_masks() -> Dict[str, Optional[Tensor]]:
    """Masks that every class takes."""
    itself = torch.eye(LENGTH, dtype=torch.int64)
    return {
        "none": None,
        "causal": torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(),
        # [1, L, L], any nonzero integer lets through.
        "integer": torch.randint(0, 3, (1, LENGTH, LENGTH)).maximum(itself),
    }


def random_mask(*shape: int) -> Tensor:
    return torch.eye(LENGTH, dtype=torch.bool) | (torch.rand(shape) < 0.5)


def random_padding() -> Tensor:
    """[B, L], int64; the first key is always there."""
    return torch.randint(0, 2, (BATCH, LENGTH)).index_fill(1, torch.tensor([0]), 1)


def single_head_masks() -> Dict[str, Optional[Tensor]]:
    return {
        **common_masks(),
        "batch": random_mask(BATCH, LENGTH, LENGTH),
        "expanded": random_padding()[:, None].expand(BATCH, LENGTH, LENGTH),
    }


def multi_head_masks() -> Dict[str, Optional[Tensor]]:
    return {
        **common_masks(),
        "batch": random_mask(BATCH, 1, LENGTH, LENGTH),
        "heads": random_mask(BATCH, HEADS, LENGTH, LENGTH),
        "expanded": random_padding()[:, None, None].expand(BATCH, HEADS, LENGTH, LENGTH),
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
