# SPDX-License-Identifier: BSD-3-Clause
"""Masks that the classes are compared under: nonzero = may attend."""

from typing import Dict, Optional

import torch
from torch import Tensor

Masks = Dict[str, Optional[Tensor]]


def first_key_seen(mask: Tensor) -> Tensor:
    """Leaves every query a key: what happens without one is in __init__.py."""
    return mask.index_fill(-1, torch.tensor([0]), 1)


def padding(batch: int, keys: int) -> Tensor:
    """[B, S] int64; the first key is always there."""
    return first_key_seen(torch.randint(0, 2, (batch, keys)))


def masks_for(batch: int, length: int, keys: int, head_axis: bool) -> Masks:
    """None, padding repeated for every query and a random one."""

    def with_heads(mask: Tensor) -> Tensor:
        return mask.unsqueeze(1) if head_axis else mask

    repeated = padding(batch, keys).unsqueeze(1).repeat(1, length, 1)  # [B, L, S]
    drawn = first_key_seen(torch.randint(0, 2, (batch, length, keys)))  # [B, L, S]
    return {"none": None, "padding": with_heads(repeated), "random": with_heads(drawn)}
