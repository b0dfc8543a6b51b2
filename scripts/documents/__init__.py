"""Python classes of the documents that heed implements, one file a document.

Each file holds the classes and `examples()`: what export_torchscript.py --document builds of them.
"""

from typing import Dict, NamedTuple, Optional

import torch
from torch import nn


class Example(NamedTuple):
    """A module to export, and the calls that its fixture records."""

    module: nn.Module
    args: Dict[str, int]  # the constructor's, by name
    inputs: Dict[str, torch.Tensor]  # forward's, by name; every call has them
    masks: Dict[str, Optional[torch.Tensor]]  # forward's mask, by call
