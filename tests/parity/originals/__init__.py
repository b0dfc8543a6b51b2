"""Python classes of the documents that heed implements, one file a document.

Each file holds the classes and `examples()`: what export_torchscript.py --document builds of them.
"""

from typing import Dict, NamedTuple, Optional

import torch
from torch import nn


class Example(NamedTuple):
    """A module to export, and the calls that its fixture records."""

    module: nn.Module
    args: Dict[str, float]  # the constructor's, by name
    inputs: Dict[str, torch.Tensor]  # forward's in its order, by heed's name; every call has them
    masks: Dict[str, Optional[torch.Tensor]]  # forward's mask, by call
    kind: str = ""  # tells examples of one class apart

    @property
    def name(self) -> str:
        return "_".join(filter(None, (type(self.module).__name__, self.kind)))


def sources(
    kind: str, batch: int, length: int, keys: int, width: int, *others: int
) -> Dict[str, torch.Tensor]:
    """Query [B, L, E], key and value [B, S, E] (or of the other widths); for "self" all the same."""
    query = torch.randn(batch, length, width)
    if kind == "self":
        return {"query": query, "key": query.clone(), "value": query.clone()}
    key_width, value_width = others or (width, width)
    return {
        "query": query,
        "key": torch.randn(batch, keys, key_width),
        "value": torch.randn(batch, keys, value_width),
    }
