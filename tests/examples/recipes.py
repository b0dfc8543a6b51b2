#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Write what the Python halves of docs/recipes.md compute, or read what C++ saved for Python.

    recipes.py write FOLDER   a file for each recipe
    recipes.py read FOLDER    compares exported.safetensors with exported_scores.safetensors

A file FOLDER/NAME.safetensors holds the model's tensors (model.*), the inputs, the output y, a random
weight r of each element of y, and the gradients of (r * y).sum() by the parameters (gradients.model.*)
and by the inputs (gradients.*). All in float64.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples/recipes"), str(ROOT / "tests/support")]
try:
    import originals
    import torch
    from safetensors.torch import load_file, save_file
    from torch import nn
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from transformers import __version__ as version
except ImportError as error:
    sys.exit(f"recipes.py: cannot import torch, safetensors or transformers ({error})")
if int(version.split(".")[0]) < 5:
    sys.exit(f"recipes.py: cannot import transformers 5 (this is {version})")
from seeds import moved  # noqa: E402


def plain(tensors):
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


def write(name, model, inputs, function):
    """`function` has the inputs by their names; floating-point ones get gradients."""
    for tensor in inputs.values():
        if tensor.is_floating_point():
            tensor.requires_grad_()
    y = function(**inputs)
    r = torch.randn_like(y)
    (r * y).sum().backward()
    saved = {**inputs, "y": y, "r": r}
    for key, tensor in inputs.items():
        if tensor.grad is not None:
            saved[f"gradients.{key}"] = tensor.grad
    state = model.state_dict(keep_vars=True)
    saved.update({f"model.{key}": tensor for key, tensor in state.items()})
    saved.update({f"gradients.model.{key}": tensor.grad for key, tensor in state.items()
                  if tensor.grad is not None})
    save_file(plain(saved), f"{name}.safetensors")


def prepared(model):
    """In float64, with norms and biases that are not 1 and 0, and without dropout."""
    model.double().eval().apply(originals.initialize_layer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def random(*sizes):
    return torch.randn(*sizes, dtype=torch.double)


def write_positions():
    t5 = prepared(originals.make_t5())
    mask = torch.arange(40) < torch.tensor([[40], [31]])
    write("t5", t5, {"tokens": torch.randint(50, (2, 40)), "mask": mask},
          lambda tokens, mask: t5(tokens, attention_mask=mask).last_hidden_state * mask[..., None])
    from transformers.models.t5.modeling_t5 import T5Attention
    biases = {}
    for name, is_decoder in ("both", False), ("past", True):
        t5.config.is_decoder = is_decoder
        attention = T5Attention(t5.config, has_relative_attention_bias=True, layer_idx=0)
        biases[f"{name}.table.weight"] = attention.relative_attention_bias.weight
        biases[f"{name}.bias"] = attention.compute_bias(300, 300)
    save_file(plain(biases), "t5_bias.safetensors")
    write("alibi", nn.Module(), {name: random(2, 6, 10, 8) for name in ("query", "key", "value")},
          originals.attend_with_alibi)
    conformer = prepared(originals.make_conformer_attention())
    from transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer import (
        Wav2Vec2ConformerRelPositionalEmbedding as Positions)
    positions = Positions(conformer.config)
    write("conformer", conformer, {"x": random(2, 9, 32)},
          lambda x: conformer(x, relative_position_embeddings=positions(x.detach()))[0])


def write_images():
    swin = prepared(originals.make_swin_layers())

    def layers(x):
        y = x.flatten(1, 2)
        for layer in swin:
            y = layer(y, (8, 12))[0]
        return y.view_as(x)
    write("swin", swin, {"x": random(2, 8, 12, 32)}, layers)
    vit = prepared(originals.make_vit())
    write("vit", vit, {"images": random(2, 3, 16, 16)}, lambda images: vit(images).logits)
    vit.save_pretrained("vit")
    spatial = prepared(originals.SpatialAttention(32, 4, 24))
    write("spatial", spatial, {"image": random(2, 32, 4, 6), "text": random(2, 7, 24)}, spatial)


def write_models():
    perceiver = prepared(originals.Perceiver())
    mask = torch.arange(11) < torch.tensor([[11], [8]])
    write("perceiver", perceiver, {"inputs": random(2, 11, 24), "mask": mask}, perceiver)

    longformer = prepared(originals.make_longformer_attention())
    is_global = torch.zeros(32, dtype=torch.bool)
    is_global[[0, 17]] = True

    def attend(x, is_global):
        globals_ = is_global.expand(2, -1)
        return longformer(x, attention_mask=globals_ * 10000.0,
                          is_index_masked=torch.zeros_like(globals_),
                          is_index_global_attn=globals_, is_global_attn=True)[0]
    write("longformer", longformer, {"x": random(2, 32, 32), "is_global": is_global}, attend)

    mixture = originals.make_mixture()
    for parameter in mixture.parameters():
        nn.init.normal_(parameter, std=0.2)  # which are made without values
    mixture = prepared(mixture)
    write("mixture", mixture, {"x": random(2, 9, 32)}, lambda x: mixture(x))
    # A published file has a matrix for each expert.
    saved = load_file("mixture.safetensors")
    for prefix in "model.experts.", "gradients.model.experts.":
        gate_up, down = saved.pop(prefix + "gate_up_proj"), saved.pop(prefix + "down_proj")
        for i in range(len(down)):
            saved[f"{prefix}{i}.w1.weight"], saved[f"{prefix}{i}.w3.weight"] = gate_up[i].chunk(2)
            saved[f"{prefix}{i}.w2.weight"] = down[i]
    save_file(plain(saved), "mixture.safetensors")


def write_a_ring_of_keys():
    mistral = prepared(originals.make_mistral())
    mistral.save_pretrained("mistral")
    tokens = torch.randint(50, (2, 60))
    with torch.no_grad():
        scores = mistral(tokens).logits
    save_file(plain({"tokens": tokens, "scores": scores}), "mistral.safetensors")


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True,
                                           norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


def write_training():
    lora = prepared(originals.LoraAttention(32, 4, rank=4, alpha=8))
    write("lora", lora, {"x": random(2, 9, 32)}, lora)

    critic = prepared(Critic())
    with sdpa_kernel(SDPBackend.MATH):
        write("penalty", critic, {"x": random(3, 7, 32)},
              lambda x: originals.gradient_penalty(critic, x))

    teacher, student = prepared(originals.make_gpt()), prepared(originals.make_gpt(layers=1))
    save_file(plain({f"model.{k}": v for k, v in teacher.state_dict().items()}),
              "teacher.safetensors")
    tokens = torch.randint(50, (2, 12))

    def loss(tokens):
        with torch.no_grad():
            scores = teacher(tokens[:, :-1])
        return originals.distillation_loss(scores, student(tokens[:, :-1]), tokens[:, 1:],
                                           temperature=2.0, share=0.7)
    write("distillation", student, {"tokens": tokens}, loss)

    model = originals.make_gpt().double().apply(originals.initialize_layer)
    begin = plain({f"model.{k}": v for k, v in model.state_dict().items()})
    optimizer = originals.make_nanogpt_optimizer(model, 3e-3)
    # Each row counts on by a number of its own.
    rows = torch.randint(50, (200, 8, 1)) + torch.randint(1, 8, (200, 8, 1)) * torch.arange(17)
    batches = rows % 50
    losses = [originals.train_step(model, optimizer, tokens) for tokens in batches]
    losses = torch.tensor(losses, dtype=torch.double)
    save_file({**begin, "batches": batches, "losses": losses}, "nanogpt.safetensors")

    other = prepared(originals.make_gpt_of_other_order())
    write("other_order", other, {"tokens": tokens}, other)


def read():
    gpt = originals.make_gpt().double()
    gpt.load_state_dict(load_file("exported.safetensors"))
    given = load_file("exported_scores.safetensors")
    with torch.no_grad():
        torch.testing.assert_close(gpt(given["tokens"]), given["scores"], rtol=0, atol=1e-10)


if __name__ == "__main__":
    os.makedirs(sys.argv[2], exist_ok=True)
    os.chdir(sys.argv[2])
    torch.manual_seed(moved(0))
    if sys.argv[1] == "read":
        read()
    else:
        for write_group in (write_positions, write_images, write_models, write_a_ring_of_keys,
                            write_training):
            write_group()
