# SPDX-License-Identifier: BSD-3-Clause
"""What all classes compute with; TorchScript compiles it with them."""

import math
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor],
    temperature: float, fill: float = -math.inf, dropout: float = 0.0, training: bool = False,
) -> Tuple[Tensor, Tensor]:
    """softmax(query key^T / temperature) value [..., L, Dv], and the weights [..., L, S].

    Scores are `fill` where the mask, broadcastable to [..., L, S], is 0. Dropout falls on the
    weights, and those returned are what it left.
    """
    scores = query @ key.transpose(-2, -1) / temperature
    if mask is not None:
        scores = scores.masked_fill(mask == 0, fill)
    weights = F.dropout(torch.softmax(scores, dim=-1), dropout, training)
    return weights @ value, weights


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, L, H * D] -> [B, H, L, D]"""
    return x.unflatten(-1, [heads, -1]).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """[B, H, L, D] -> [B, L, H * D]"""
    return x.transpose(1, 2).flatten(2)


def multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Optional[Tensor],
    temperature: float, fill: float = -math.inf, dropout: float = 0.0, training: bool = False,
) -> Tuple[Tensor, Tensor]:
    """attention of heads in [B, L, H * D]: the output [B, L, H * Dv], and the weights."""
    output, weights = attention(
        split_heads(query, heads), split_heads(key, heads), split_heads(value, heads), mask,
        temperature, fill, dropout, training,
    )
    return merge_heads(output), weights
