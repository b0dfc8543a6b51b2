#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Write what transformers' rotary embeddings compute, for heed's parity test.

    rotary_embeddings.py --out tests/parity/data/rotary.pt

Needs transformers and torch; the file that it wrote is kept in the repository, so that the test
needs neither transformers nor this script. The file is a dict that torch::pickle_load reads in C++:

    x            [B, H, L, D]
    positions    int64 [B, L]
    points       int64 [B, L, 3]: positions of an image between texts, as Qwen2-VL counts them
    places       int64 [L, 2]: rows and columns of an image
    dinov3_cos, dinov3_sin    [L, D]: the angles of DINOv3's places, which are no integers
    <case>       x rotated
"""

import argparse
import sys
from pathlib import Path

try:
    import torch
    from transformers import DINOv3ViTConfig, GPTJConfig, LlamaConfig
    from transformers.models.dinov3_vit import modeling_dinov3_vit
    from transformers.models.glm4v import configuration_glm4v, modeling_glm4v
    from transformers.models.gptj import modeling_gptj
    from transformers.models.llama import modeling_llama
    from transformers.models.qwen2_vl import configuration_qwen2_vl, modeling_qwen2_vl
except ImportError as error:
    sys.exit(f"rotary_embeddings.py: {error}: install transformers and torch")

HEAD_DIM = 16
HEADS = 3

# A name for each case, and transformers' rope_parameters.
LLAMA_CASES = {
    "plain": {"rope_type": "default", "rope_theta": 10000.0},
    "base": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "dynamic_ntk": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0],
        "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 9.0, 11.0, 14.0],
        "attention_factor": 1.25,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}

AXIAL = {"rope_type": "axial", "rope_theta": 100.0}


def rotate_as_llama(x: torch.Tensor, positions: torch.Tensor, parameters: dict) -> torch.Tensor:
    config = LlamaConfig(
        hidden_size=HEADS * HEAD_DIM,
        num_attention_heads=HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=64 * 4 if "original_max_position_embeddings" in parameters else 64,
        rope_parameters=parameters,
    )
    # Each sequence alone: in a batch, all have the frequencies of the longest.
    rotated = []
    for row, own in zip(x.split(1), positions.split(1)):
        cos, sin = modeling_llama.LlamaRotaryEmbedding(config)(row, own)
        rotated.append(modeling_llama.apply_rotary_pos_emb(row, row, cos, sin)[0])
    return torch.cat(rotated)


def rotate_as_gptj(x: torch.Tensor, positions: torch.Tensor, rotary_dim: int) -> torch.Tensor:
    table = modeling_gptj.create_sinusoidal_positions(int(positions.max()) + 1, rotary_dim)
    sin, cos = table[positions].chunk(2, dim=-1)  # [B, L, rotary_dim / 2]
    heads_last = x.transpose(1, 2)
    rotated = modeling_gptj.apply_rotary_pos_emb(heads_last[..., :rotary_dim], sin, cos)
    return torch.cat([rotated, heads_last[..., rotary_dim:]], dim=-1).transpose(1, 2)


def rotate_as_qwen2_vl(x: torch.Tensor, points: torch.Tensor, parameters: dict) -> torch.Tensor:
    config = configuration_qwen2_vl.Qwen2VLTextConfig(
        hidden_size=HEADS * HEAD_DIM,
        num_attention_heads=HEADS,
        max_position_embeddings=64 * 4,
        rope_parameters={**parameters, "mrope_section": [2, 3, 3]},
    )
    embedding = modeling_qwen2_vl.Qwen2VLRotaryEmbedding(config)
    cos, sin = embedding(x, points.movedim(-1, 0))  # theirs are [3, B, L]
    return modeling_qwen2_vl.apply_rotary_pos_emb(x, x, cos, sin)[0]


def rotate_as_glm4v(x: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    config = configuration_glm4v.Glm4vTextConfig(
        hidden_size=HEADS * HEAD_DIM,
        num_attention_heads=HEADS,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [1, 1, 2],
        },
    )
    cos, sin = modeling_glm4v.Glm4vTextRotaryEmbedding(config)(x, points.movedim(-1, 0))
    return modeling_glm4v.apply_rotary_pos_emb(x, x, cos, sin)[0]


def rotate_as_qwen2_vl_vision(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    config = configuration_qwen2_vl.Qwen2VLVisionConfig(
        embed_dim=HEADS * HEAD_DIM, num_heads=HEADS, rope_parameters=AXIAL
    )
    cos, sin = modeling_qwen2_vl.Qwen2VLVisionRotaryEmbedding(config)(x, places)
    heads_last = x.transpose(1, 2)
    rotated = modeling_qwen2_vl.apply_rotary_pos_emb_vision(heads_last, heads_last, cos, sin)[0]
    return rotated.transpose(1, 2)


def angles_of_dinov3() -> tuple[torch.Tensor, torch.Tensor]:
    config = DINOv3ViTConfig(
        hidden_size=HEADS * HEAD_DIM, num_attention_heads=HEADS, patch_size=4, image_size=12
    )
    embedding = modeling_dinov3_vit.DINOv3ViTRopePositionEmbedding(config).eval()
    return embedding(torch.zeros(1, 3, 12, 12))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    x = torch.randn(2, HEADS, 9, HEAD_DIM)
    # Within and beyond the length trained for, which the cases give as 64.
    positions = torch.stack([torch.arange(9), torch.arange(9) * 23 + 5])
    tensors = {"x": x, "positions": positions}
    for name, parameters in LLAMA_CASES.items():
        tensors[name] = rotate_as_llama(x, positions, parameters)
    tensors["interleaved"] = rotate_as_gptj(x, positions, HEAD_DIM)
    tensors["interleaved_partial"] = rotate_as_gptj(x, positions, 6)

    # Two tokens of text, an image of 2 x 3 patches, and a token of text.
    image = [[2, 2 + row, 2 + column] for row in range(2) for column in range(3)]
    points = torch.tensor([[0, 0, 0], [1, 1, 1], *image, [5, 5, 5]])
    tensors["points"] = torch.stack([points, points * 23 + 5])
    for name, parameters in (("mrope", LLAMA_CASES["plain"]), ("mrope_yarn", LLAMA_CASES["yarn"])):
        tensors[name] = rotate_as_qwen2_vl(x, tensors["points"], parameters)
    tensors["mrope_interleaved"] = rotate_as_glm4v(x, tensors["points"])

    places = torch.tensor([[row, column] for row in range(3) for column in range(3)])
    tensors["places"] = places
    tensors["axial"] = rotate_as_qwen2_vl_vision(x, places)
    cos, sin = angles_of_dinov3()
    tensors["dinov3_cos"], tensors["dinov3_sin"] = cos, sin
    tensors["dinov3"] = modeling_dinov3_vit.apply_rotary_pos_emb(x, x, cos, sin)[0]
    torch.save({name: tensor.contiguous() for name, tensor in tensors.items()}, arguments.out)
    print(f"wrote {arguments.out}: {', '.join(tensors)}")


if __name__ == "__main__":
    main()
