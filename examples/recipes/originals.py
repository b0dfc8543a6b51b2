# SPDX-License-Identifier: BSD-3-Clause
"""The Python halves of docs/recipes.md: models and losses that the C++ beside this file ports."""

import math
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from transformers import (
    LongformerConfig,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    PerceiverConfig,
    SwinConfig,
    T5Config,
    T5EncoderModel,
    ViTConfig,
    ViTForImageClassification,
    Wav2Vec2ConformerConfig,
)
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.perceiver.modeling_perceiver import PerceiverEncoder
from transformers.models.swin.modeling_swin import SwinLayer
from transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer import (
    Wav2Vec2ConformerSelfAttention,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "guide"))
from porting import GPT  # noqa: E402


def make_t5():
    return T5EncoderModel(T5Config(vocab_size=50, d_model=32, d_kv=16, num_heads=4, d_ff=64,
                                   num_layers=2))


def attend_with_alibi(query, key, value):
    batch, heads, length, _ = query.shape
    bias = build_alibi_tensor(torch.ones(batch, length), heads, query.dtype)
    future = nn.Transformer.generate_square_subsequent_mask(length, dtype=query.dtype)
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=bias.view(batch, heads, 1, length) + future)


def make_conformer_attention():
    return Wav2Vec2ConformerSelfAttention(Wav2Vec2ConformerConfig(
        hidden_size=32, num_attention_heads=4, position_embeddings_type="relative"))


def make_swin_layers():
    config = SwinConfig(window_size=4, attn_implementation="sdpa")
    return nn.ModuleList(SwinLayer(config, dim=32, input_resolution=(8, 12), num_heads=4,
                                   shift_size=shift) for shift in (0, 2))


def make_vit():
    return ViTForImageClassification(ViTConfig(
        image_size=16, patch_size=4, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, num_labels=10, attn_implementation="sdpa"))


class Perceiver(nn.Module):
    def __init__(self):
        super().__init__()
        config = PerceiverConfig(d_latents=32, num_self_attends_per_block=2, num_blocks=2,
                                 num_self_attention_heads=4, num_cross_attention_heads=2)
        self.latents = nn.Parameter(torch.randn(6, 32))
        self.encoder = PerceiverEncoder(config, kv_dim=24)

    def forward(self, inputs, mask):  # mask [B, S], true = may be seen
        hidden = torch.zeros_like(mask, dtype=inputs.dtype).masked_fill(~mask, -math.inf)
        latents = self.latents.expand(len(inputs), -1, -1)
        return self.encoder(latents, inputs=inputs,
                            inputs_mask=hidden[:, None, None]).last_hidden_state


def make_longformer_attention():
    return LongformerSelfAttention(LongformerConfig(
        hidden_size=32, num_attention_heads=4, attention_window=[8]), layer_id=0)


class SpatialAttention(nn.Module):
    """A U-Net's block with the names of diffusers: an image attends to itself and to a text."""

    def __init__(self, channels, heads, text_dim):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        for name, width in (("attn1", channels), ("attn2", text_dim)):
            self.add_module(name, nn.ModuleDict({
                "to_q": nn.Linear(channels, channels, bias=False),
                "to_k": nn.Linear(width, channels, bias=False),
                "to_v": nn.Linear(width, channels, bias=False),
                "to_out": nn.Sequential(nn.Linear(channels, channels), nn.Dropout(0.0))}))

    def attend(self, layers, x, memory):
        query, key, value = (
            y.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for y in (layers["to_q"](x), layers["to_k"](memory), layers["to_v"](memory)))
        y = functional.scaled_dot_product_attention(query, key, value)
        return layers["to_out"](y.transpose(1, 2).flatten(2))

    def forward(self, image, text):
        x = image.flatten(2).transpose(1, 2)  # [B, height * width, channels]
        y = self.norm1(x)
        x = x + self.attend(self.attn1, y, y)
        x = x + self.attend(self.attn2, self.norm2(x), text)
        return x.transpose(1, 2).view_as(image)


def make_mixture():
    return MixtralSparseMoeBlock(MixtralConfig(
        hidden_size=32, intermediate_size=48, num_local_experts=4, num_experts_per_tok=2))


class LoraLinear(nn.Linear):
    def __init__(self, in_features, out_features, rank, alpha):
        super().__init__(in_features, out_features)
        self.lora_a = nn.Parameter(torch.randn(rank, in_features) / math.sqrt(in_features))
        self.lora_b = nn.Parameter(torch.zeros(out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return super().forward(x) + self.scale * (x @ self.lora_a.T @ self.lora_b.T)


class LoraAttention(nn.Module):
    def __init__(self, width, heads, rank, alpha):
        super().__init__()
        self.heads = heads
        self.fc_q = LoraLinear(width, width, rank, alpha)
        self.fc_k = nn.Linear(width, width)
        self.fc_v = LoraLinear(width, width, rank, alpha)
        self.fc_out = nn.Linear(width, width)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_("lora_" in name)

    def forward(self, x):
        query, key, value = (layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
                             for layer in (self.fc_q, self.fc_k, self.fc_v))
        y = functional.scaled_dot_product_attention(query, key, value)
        return self.fc_out(y.transpose(1, 2).flatten(2))


def make_mistral():
    return MistralForCausalLM(MistralConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, sliding_window=8))


def make_nanogpt_optimizer(model, learning_rate):
    parameters = list(model.parameters())
    return torch.optim.AdamW(
        [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
         {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}],
        lr=learning_rate, betas=(0.9, 0.95))


def train_step(model, optimizer, tokens):
    scores = model(tokens[:, :-1])
    loss = functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def gradient_penalty(critic, x):
    x = x.detach().requires_grad_()
    gradient, = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return (gradient.flatten(1).norm(dim=1) - 1).square().mean()


def distillation_loss(teacher_scores, student_scores, targets, temperature, share):
    teacher = (teacher_scores / temperature).log_softmax(-1).flatten(0, 1)
    student = (student_scores / temperature).log_softmax(-1).flatten(0, 1)
    soft = functional.kl_div(student, teacher, reduction="batchmean", log_target=True)
    hard = functional.cross_entropy(student_scores.flatten(0, 1), targets.flatten())
    return share * temperature**2 * soft + (1 - share) * hard


def initialize_layer(module):
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    elif isinstance(module, nn.LayerNorm):
        nn.init.ones_(module.weight)
    if isinstance(module, (nn.Linear, nn.LayerNorm)) and module.bias is not None:
        nn.init.zeros_(module.bias)


class OtherOrder(nn.Module):
    """nanoGPT's attention, but for the order in its fused projection."""

    def __init__(self, attention):
        super().__init__()
        self.heads = attention.heads
        self.c_attn, self.c_proj = attention.c_attn, attention.c_proj

    def forward(self, x):
        key, query, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2)
                             for part in self.c_attn(x).chunk(3, dim=2))
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


def make_gpt(layers=2):
    return GPT(vocab_size=50, block_size=16, n_embd=32, n_head=4, n_layer=layers, bias=False)


def make_gpt_of_other_order():
    model = make_gpt()
    for block in model.transformer["h"]:
        block.attn = OtherOrder(block.attn)
    return model
