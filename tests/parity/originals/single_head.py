# SPDX-License-Identifier: BSD-3-Clause
"""One head in four versions: with three projections or one, without and with mask and dropout.

The names keep their text's spelling, `SelfAttenionV1` and `SelfAttenionV2`; so does the parameter
`valye_proj`, which saved weights carry.
"""

import math
from typing import List, Optional

import torch
from torch import Tensor, nn

from originals import Example
from originals.formulas import attention
from originals.masks import masks_for


class SelfAttenionV1(nn.Module):
    """Three projections."""

    def __init__(self, hidden_dim: int) -> None:
        super().__init__()
        self.temperature = math.sqrt(hidden_dim)
        self.query_proj = nn.Linear(hidden_dim, hidden_dim)
        self.key_proj = nn.Linear(hidden_dim, hidden_dim)
        self.valye_proj = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, X: Tensor) -> Tensor:
        """X [B, L, E]; returns [B, L, E]."""
        query, key, value = self.query_proj(X), self.key_proj(X), self.valye_proj(X)
        return attention(query, key, value, None, self.temperature)[0]


class SelfAttenionV2(nn.Module):
    """One projection."""

    def __init__(self, hidden_dim: int) -> None:
        super().__init__()
        self.temperature = math.sqrt(hidden_dim)
        self.proj = nn.Linear(hidden_dim, 3 * hidden_dim)

    def forward(self, X: Tensor) -> Tensor:
        """X [B, L, E]; returns [B, L, E]."""
        query, key, value = self.proj(X).chunk(3, dim=-1)
        return attention(query, key, value, None, self.temperature)[0]


class SelfAttentionV3(nn.Module):
    """One projection, mask and dropout."""

    def __init__(self, hidden_dim: int) -> None:
        super().__init__()
        self.temperature = math.sqrt(hidden_dim)
        self.proj = nn.Linear(hidden_dim, 3 * hidden_dim)

    def forward(self, X: Tensor, attention_mask: Optional[Tensor] = None) -> Tensor:
        """X [B, L, E]; attention_mask [B, L, L]; returns [B, L, E]."""
        query, key, value = self.proj(X).chunk(3, dim=-1)
        return attention(
            query, key, value, attention_mask, self.temperature, -1e20, 0.1, self.training
        )[0]


class SelfAttentionV4(nn.Module):
    """Three projections, mask and dropout."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.temperature = math.sqrt(dim)
        self.query_proj = nn.Linear(dim, dim)
        self.key_proj = nn.Linear(dim, dim)
        self.value_proj = nn.Linear(dim, dim)

    def forward(self, X: Tensor, attention_mask: Optional[Tensor] = None) -> Tensor:
        """X [B, L, E]; attention_mask [B, L, L]; returns [B, L, E]."""
        query, key, value = self.query_proj(X), self.key_proj(X), self.value_proj(X)
        return attention(
            query, key, value, attention_mask, self.temperature, -1e20, 0.1, self.training
        )[0]


def examples() -> List[Example]:
    """One of each class, drawn from torch's generator, also for sequences that end early."""
    batch, length, width = 3, 4, 16
    lengths = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]).unsqueeze(1)  # [B, 1, S]
    masks = {
        **masks_for(batch, length, length, head_axis=False),
        "lengths": lengths.repeat(1, length, 1),
    }

    def example(module: type, arg: str, masked: bool) -> Example:
        args = {arg: width}
        inputs = {"x": torch.randn(batch, length, width)}
        return Example(module(**args), args, inputs, masks if masked else {"none": None})

    return [
        example(SelfAttenionV1, "hidden_dim", masked=False),
        example(SelfAttenionV2, "hidden_dim", masked=False),
        example(SelfAttentionV3, "hidden_dim", masked=True),
        example(SelfAttentionV4, "dim", masked=True),
    ]
