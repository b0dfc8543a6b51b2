#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Write torch.nn's transformers and nanoGPT's, randomly initialized, and what they compute.

    pytorch_models.py FOLDER

For each model FOLDER/NAME.pt, its state_dict, and FOLDER/NAME_output.pt: x, memory where there is one,
and y. All in float64.
"""

import sys
from pathlib import Path

import torch
from porting import GPT
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from seeds import moved  # noqa: E402

LAYER = {"d_model": 32, "nhead": 4, "dim_feedforward": 48, "batch_first": True}


def encoder(final_norm: bool, **options) -> nn.Module:
    norm = nn.LayerNorm(32, bias=options.get("bias", True)) if final_norm else None
    layer = nn.TransformerEncoderLayer(**LAYER, **options)
    return nn.TransformerEncoder(layer, 3, norm=norm, enable_nested_tensor=False)


def decoder(final_norm: bool, **options) -> nn.Module:
    norm = nn.LayerNorm(32, bias=options.get("bias", True)) if final_norm else None
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(**LAYER, **options), 3, norm=norm)


def write(folder: Path, name: str, model: nn.Module, *inputs: torch.Tensor, **masks) -> None:
    model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
        y = model(*inputs, **masks)
    torch.save(model.state_dict(), folder / f"{name}.pt")
    torch.save(dict(zip(("x", "memory"), inputs), y=y), folder / f"{name}_output.pt")


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(moved(0))
    x = torch.randn(2, 7, 32, dtype=torch.double)
    memory = torch.randn(2, 5, 32, dtype=torch.double)
    future = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.double)
    write(folder, "encoder_post", encoder(False), x)
    write(folder, "encoder_post_norm", encoder(True, activation="gelu"), x)
    write(folder, "encoder_pre", encoder(False, norm_first=True), x)
    write(folder, "encoder_pre_norm", encoder(True, norm_first=True, bias=False), x)
    write(folder, "decoder_post", decoder(False), x, memory, tgt_mask=future)
    write(folder, "decoder_pre_norm", decoder(True, norm_first=True), x, memory, tgt_mask=future)
    tokens = torch.randint(50, (2, 12))
    for name, bias in {"nanogpt": True, "nanogpt_without_biases": False}.items():
        write(folder, name, GPT(50, 16, 32, 4, 3, bias), tokens)


if __name__ == "__main__":
    main()
