# SPDX-License-Identifier: BSD-3-Clause
"""Writes the models that porting.cpp ports, and their outputs, into the working directory."""

import sys

try:
    import torch
    from safetensors.torch import save_file
    from torch import nn
    from torch.nn import functional
except ImportError as error:
    sys.exit(f"porting.py: cannot import torch or safetensors ({error})")


class CausalSelfAttention(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)
        self.heads = heads

    def forward(self, x):
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2)
                             for part in self.c_attn(x).chunk(3, dim=2))
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=bias)
        self.c_proj = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x):
        return self.c_proj(functional.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, bias=bias)
        self.attn = CausalSelfAttention(width, heads, bias)
        self.ln_2 = nn.LayerNorm(width, bias=bias)
        self.mlp = MLP(width, bias)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """nanoGPT's names and layouts."""

    def __init__(self, vocab_size, block_size, n_embd, n_head, n_layer, bias):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocab_size, n_embd),
            "wpe": nn.Embedding(block_size, n_embd),
            "h": nn.ModuleList([Block(n_embd, n_head, bias) for _ in range(n_layer)]),
            "ln_f": nn.LayerNorm(n_embd, bias=bias),
        })
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, tokens):
        positions = torch.arange(tokens.size(1))
        x = self.transformer.wte(tokens) + self.transformer.wpe(positions)
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def make_encoder():
    layer = nn.TransformerEncoderLayer(d_model=64, nhead=4, dim_feedforward=128, batch_first=True)
    return nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)


def make_decoder():
    layer = nn.TransformerDecoderLayer(d_model=64, nhead=4, dim_feedforward=128, batch_first=True,
                                       norm_first=True)
    return nn.TransformerDecoder(layer, num_layers=2, norm=nn.LayerNorm(64))


def make_gpt():
    return GPT(vocab_size=50, block_size=32, n_embd=64, n_head=4, n_layer=2, bias=False)


def write_encoder():
    encoder = make_encoder().eval()
    x = torch.randn(2, 10, 64)
    padding = torch.arange(10) >= torch.tensor([[10], [7]])
    torch.save(encoder.state_dict(), "encoder.pt")
    save_file({"x": x, "y": encoder(x, src_key_padding_mask=padding)[1, :7]},
              "encoder_output.safetensors")


def write_decoder():
    decoder = make_decoder().eval()
    x, memory = torch.randn(2, 6, 64), torch.randn(2, 10, 64)
    future = nn.Transformer.generate_square_subsequent_mask(6)
    torch.save(decoder.state_dict(), "decoder.pt")
    save_file({"x": x, "memory": memory, "y": decoder(x, memory, tgt_mask=future)},
              "decoder_output.safetensors")


def write_gpt():
    gpt = make_gpt().eval()
    tokens = torch.randint(50, (2, 20))
    torch.save({"model": gpt.state_dict(), "iter_num": 1000}, "gpt.pt")
    save_file({"tokens": tokens, "y": gpt(tokens)}, "gpt_output.safetensors")


if __name__ == "__main__":
    torch.manual_seed(0)
    with torch.no_grad():
        write_encoder()
        write_decoder()
        write_gpt()
