"""Document 002: SelfAttention V1 to V4, single-head.

The classes compute what the document's listings compute, statement for statement, with comments in
English and without their prints. Their names keep the document's spelling, `SelfAttenionV1` and
`SelfAttenionV2`; so does the parameter `valye_proj`, which saved weights carry.

V3 and V4 hide keys with -1e20: a query without keys gets the mean of all values here and 0 in heed.
The examples leave each query a key.
"""

import math
from typing import List, Optional

import torch
from torch import nn

from documents import Example
from documents.masks import masks_for

DROPOUT_PROB = 0.1


class SelfAttenionV1(nn.Module):
    """The formula."""

    def __init__(self, hidden_dim: int) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.query_proj = nn.Linear(hidden_dim, hidden_dim)
        self.key_proj = nn.Linear(hidden_dim, hidden_dim)
        self.valye_proj = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """X [B, L, E]; returns [B, L, E]."""
        Q = self.query_proj(X)
        K = self.key_proj(X)
        V = self.valye_proj(X)
        attention_value = torch.matmul(Q, K.transpose(-1, -2))  # [B, L, L]
        attention_weight = torch.softmax(attention_value / math.sqrt(self.hidden_dim), dim=-1)
        output = torch.matmul(attention_weight, V)
        return output


class SelfAttenionV2(nn.Module):
    """V1 with one projection."""

    def __init__(self, hidden_dim: int) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.proj = nn.Linear(hidden_dim, hidden_dim * 3)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """X [B, L, E]; returns [B, L, E]."""
        QKV = self.proj(X)  # [B, L, 3E]
        Q, K, V = torch.split(QKV, self.hidden_dim, dim=-1)
        att_weight = torch.softmax((Q @ K.transpose(-1, -2)) / math.sqrt(self.hidden_dim), dim=-1)
        output = att_weight @ V
        return output


class SelfAttentionV3(nn.Module):
    """V2 with a mask and dropout."""

    def __init__(self, hidden_dim: int) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.proj = nn.Linear(hidden_dim, hidden_dim * 3)
        self.att_drop = nn.Dropout(0.1)

    def forward(
        self, X: torch.Tensor, attention_mask: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        """X [B, L, E]; attention_mask [B, L, L]; returns [B, L, E]."""
        QKV = self.proj(X)  # [B, L, 3E]
        Q, K, V = torch.split(QKV, self.hidden_dim, dim=-1)
        att_weight = Q @ K.transpose(-1, -2) / math.sqrt(self.hidden_dim)  # [B, L, L]
        if attention_mask is not None:
            attention_mask = attention_mask == 0
            att_weight = att_weight.masked_fill(attention_mask, float("-1e20"))
        att_weight = torch.softmax(att_weight, dim=-1)
        att_weight = self.att_drop(att_weight)
        output = att_weight @ V
        return output


class SelfAttentionV4(nn.Module):
    """V1 with a mask and dropout."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.query_proj = nn.Linear(dim, dim)
        self.key_proj = nn.Linear(dim, dim)
        self.value_proj = nn.Linear(dim, dim)
        self.attention_dropout = nn.Dropout(DROPOUT_PROB)

    def forward(
        self, X: torch.Tensor, attention_mask: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        """X [B, L, E]; attention_mask [B, L, L]; returns [B, L, E]."""
        Q = self.query_proj(X)
        K = self.key_proj(X)
        V = self.value_proj(X)
        att_weight = Q @ K.transpose(-1, -2) / math.sqrt(self.dim)  # [B, L, L]
        if attention_mask is not None:
            att_weight = att_weight.masked_fill(attention_mask == 0, float("-1e20"))
        att_weight = torch.softmax(att_weight, dim=-1)
        att_weight = self.attention_dropout(att_weight)
        output = att_weight @ V
        return output


def examples() -> List[Example]:
    """One of each class, drawn from torch's generator, under the document's own mask too."""
    batch, length, width = 3, 4, 16
    document = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]).unsqueeze(1)
    masks = {
        **masks_for(batch, length, length, head_axis=False),
        "document": document.repeat(1, length, 1),
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
