# SPDX-License-Identifier: BSD-3-Clause
"""Python classes that heed is compared with: those of five texts on attention, a module each.

The classes have the texts' names, constructors, parameters and numbers; how they compute is
written here, from the formulas. export_model.py --originals builds what `examples()` returns.
docs/documents.md says which text a module is of, and which class of heed a class is.

A query that may attend to nothing gets NaN where hidden scores are -inf and the mean of all values
where they are -1e9 or -1e20; heed gives it 0. The examples leave each query a key.
"""

from typing import Any, Dict, NamedTuple, Optional

import torch
from torch import Tensor, nn

SUBJECTS = ("heads", "shared_projections", "single_head", "multi_head", "two_frameworks")


class Example(NamedTuple):
    """A module to export, and the calls that its fixture records."""

    module: nn.Module
    args: Dict[str, Any]  # the constructor's, by name
    inputs: Dict[str, Tensor]  # forward's in its order, by heed's name; every call has them
    masks: Dict[str, Optional[Tensor]]  # forward's mask, by call
    kind: str = ""  # tells examples of one class apart

    @property
    def name(self) -> str:
        return "_".join(filter(None, (type(self.module).__name__, self.kind)))


def sources(
    kind: str, batch: int, length: int, keys: int, width: int, *others: int
) -> Dict[str, Tensor]:
    """Query [B, L, E], key and value [B, S, E] or of the other widths; all the same for "self"."""
    query = torch.randn(batch, length, width)
    if kind == "self":
        return {"query": query, "key": query.clone(), "value": query.clone()}
    key_width, value_width = others or (width, width)
    return {
        "query": query,
        "key": torch.randn(batch, keys, key_width),
        "value": torch.randn(batch, keys, value_width),
    }


def split_sources(kind: str, batch: int, heads: int, length: int, keys: int) -> Dict[str, Tensor]:
    """Query [B, H, L, 8], key [B, H, S, 8] and value [B, H, S, 8], but 5 wide for "cross"."""
    return {
        "query": torch.randn(batch, heads, length, 8),
        "key": torch.randn(batch, heads, keys, 8),
        "value": torch.randn(batch, heads, keys, 8 if kind == "self" else 5),
    }
