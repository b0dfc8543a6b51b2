#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Time small language models in C++ with heed and in Python with PyTorch, in turns.

    language_model.py PROGRAM [--doc FILE]      PROGRAM: heed_language_model, as it was built

Prints a table of tokens a second, medians of the turns, and the medians of the turns' ratios; with --doc,
also puts it between the markers in that file, in place of this processor's table. The Python model computes the same: RMSNorm,
SwiGLU, rotary embedding, grouped heads through scaled_dot_product_attention, a cache that is allocated
once.
"""

import argparse
import statistics

import torch
import torch.nn.functional as F
from processor import processor
from report import publish
from torch import nn
from turns import Program, Sizes, beside, throughput

PROMPT = 16


MODELS = {"narrow": Sizes(),
          "wide": Sizes(width=512, heads=8, hidden=1368, context=512, batch=4)}


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        width, kv_width = sizes.width, sizes.groups * sizes.head_dim
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_width, bias=False)
        self.v = nn.Linear(width, kv_width, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.feed_forward_norm = nn.RMSNorm(width, eps=1e-5)
        self.gate = nn.Linear(width, sizes.hidden, bias=False)
        self.up = nn.Linear(width, sizes.hidden, bias=False)
        self.down = nn.Linear(sizes.hidden, width, bias=False)

    def attend(self, x, cos, sin, cache, start):
        batch, length, _ = x.shape
        heads, groups, dim = self.sizes.heads, self.sizes.groups, self.sizes.head_dim
        query = rotate(self.q(x).view(batch, length, heads, dim).transpose(1, 2), cos, sin)
        key = rotate(self.k(x).view(batch, length, groups, dim).transpose(1, 2), cos, sin)
        value = self.v(x).view(batch, length, groups, dim).transpose(1, 2)
        if cache is not None:
            end = start + length
            cache[0][:, :, start:end] = key
            cache[1][:, :, start:end] = value
            key, value = cache[0][:, :, :end], cache[1][:, :, :end]
        output = F.scaled_dot_product_attention(query, key, value, is_causal=length > 1,
                                                enable_gqa=True)
        return self.o(output.transpose(1, 2).reshape(batch, length, -1))

    def forward(self, x, cos, sin, cache=None, start=0):
        x = x + self.attend(self.attention_norm(x), cos, sin, cache, start)
        y = self.feed_forward_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        nn.init.normal_(self.embedding.weight, 0.0, 0.02)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width, eps=1e-5)
        dim = sizes.head_dim
        angles = torch.outer(torch.arange(sizes.context),
                             10000.0 ** (-torch.arange(0, dim, 2) / dim)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens, caches=None, start=0):
        end = start + tokens.shape[1]
        cos, sin = self.cos[start:end], self.sin[start:end]
        x = self.embedding(tokens)
        for i, block in enumerate(self.blocks):
            x = block(x, cos, sin, caches[i] if caches else None, start)
        return F.linear(self.norm(x), self.embedding.weight)


class Peer:
    """The same two measurements as language_model.cpp's."""

    def __init__(self, sizes: Sizes, compiled: bool) -> None:
        torch.manual_seed(0)
        self.sizes = sizes
        self.model = Model(sizes)
        self.run = torch.compile(self.model) if compiled else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3, fused=True)
        self.tokens = torch.randint(self.sizes.vocabulary,
                                    (self.sizes.batch, self.sizes.context + 1))

    def train(self) -> int:
        self.optimizer.zero_grad()
        scores = self.run(self.tokens[:, :-1])
        F.cross_entropy(scores.flatten(0, 1), self.tokens[:, 1:].flatten()).backward()
        self.optimizer.step()
        return self.sizes.batch * self.sizes.context

    @torch.inference_mode()
    def decode(self) -> int:
        sizes = self.sizes
        shape = (2, 1, sizes.groups, sizes.context, sizes.head_dim)
        caches = [torch.zeros(shape).unbind() for _ in range(sizes.layers)]
        tokens, start = self.tokens[:1, :PROMPT], 0
        for _ in range(PROMPT, sizes.context):
            scores = self.model(tokens, caches, start)
            start += tokens.shape[1]
            tokens = scores[:, -1].argmax(-1, keepdim=True)
        return sizes.context - PROMPT


def measure(heed: Program, model: str, turns: int) -> list[str]:
    """The lines of one model's table."""
    sizes = MODELS[model]
    peers = {"eager": Peer(sizes, compiled=False), "compiled": Peer(sizes, compiled=True)}
    lines = []
    for work, words, names in (
            ("train", f"training, {sizes.batch} sequences of {sizes.context}", ("eager", "compiled")),
            ("decode", "generation, one token at a time from the cache", ("eager",))):
        def turn() -> list[float]:
            return [heed.ask(work), *(throughput(getattr(peers[name], work)) for name in names)]

        turn()  # warms up, and compiles
        ours, *theirs = zip(*(turn() for _ in range(turns)))
        line = f"| {sizes.width} | {words} | {statistics.median(ours):,.0f} "
        for speeds in theirs:
            line += beside(ours, speeds)
        lines.append(line + "| | " * (2 - len(theirs)) + "|")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="heed_language_model, as it was built")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--doc", help="a Markdown file with the markers, to update")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    lines = [f"{processor()}, {arguments.threads} threads, PyTorch {torch.__version__}:",
             "",
             "| width | work | heed | Python, eager | ratio | Python, compiled | ratio |",
             "|--:|---|--:|--:|--:|--:|--:|"]
    for model, sizes in MODELS.items():
        with Program([arguments.program], arguments.threads, "float32", sizes) as heed:
            lines += measure(heed, model, arguments.turns)
    print("\n".join(lines))
    if arguments.doc:
        publish("\n".join(lines) + "\n", arguments.doc, "language_model", processor())


if __name__ == "__main__":
    main()
