"""What all classes compute with; TorchScript compiles it with them."""

import math
from typing import Optional, Tuple

import torch
import torch.nn.functional as F


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Optional[torch.Tensor],
    temperature: float,
    fill: float = -math.inf,
    dropout: float = 0.0,
    training: bool = False,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """softmax(query key^T / temperature) value [..., L, Dv], and the weights [..., L, S].

    Scores are `fill` where the mask, broadcastable to [..., L, S], is 0. Dropout falls on the
    weights, and those returned are what it left.
    """
    scores = query @ key.transpose(-2, -1) / temperature
    if mask is not None:
        scores = scores.masked_fill(mask == 0, fill)
    weights = F.dropout(torch.softmax(scores, dim=-1), dropout, training)
    return weights @ value, weights


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, L, H * D] -> [B, H, L, D]"""
    return x.unflatten(-1, [heads, -1]).transpose(1, 2)


def merge_heads(x: torch.Tensor) -> torch.Tensor:
    """[B, H, L, D] -> [B, L, H * D]"""
    return x.transpose(1, 2).flatten(2)
