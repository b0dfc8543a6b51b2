# SPDX-License-Identifier: BSD-3-Clause
"""Writes the files that load_files in weights.cpp loads into the working directory."""

import sys

try:
    import torch
    from safetensors.torch import save_file
except ImportError as error:
    sys.exit(f"checkpoint.py: cannot import torch or safetensors ({error})")

names = ("fc_q", "fc_k", "fc_v")
attention = torch.nn.ModuleDict({name: torch.nn.Linear(64, 64) for name in names})
layer = torch.nn.ModuleDict({"attention": attention})
model = torch.nn.ModuleDict({"encoder": torch.nn.ModuleDict({"layer": torch.nn.ModuleList([layer])})})

save_file(attention.state_dict(), "model.safetensors")
torch.save({"model": model.state_dict(), "step": 1000}, "checkpoint.pt")
