#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Export a language model in the ways in which C++ runs whole models.

    export_language_model.py --library libheed_ops.so --out DIR

The model is plain PyTorch: decoder blocks with rotary positions, grouped heads and causal attention
to a window, with random weights. It calls either torch.ops.heed.attend or
F.scaled_dot_product_attention, and nothing else differs. DIR then holds

    heed.pt          the model with heed's operator, by torch.jit.trace
    heed.pt2         the same, compiled by AOTInductor
    sdpa.pt2         the model with F.scaled_dot_product_attention, compiled by AOTInductor
    changed.pt2      that, after scripts/python/use_heed_attention.py
    expected.pt      tokens [B, L] and logits [B, L, V], which Python computes with sdpa

The programs take any number of tokens. examples/run_exported.cpp runs and compares them.
"""

import argparse
import sys
import warnings
from pathlib import Path
from typing import Callable, NoReturn, Optional


def fail(message: str) -> NoReturn:
    sys.exit(f"export_language_model.py: {message}")


try:
    import torch
    from torch._inductor import aoti_compile_and_package
    from torch.export import Dim, ExportedProgram
    from torch.nn import functional as F
except ImportError as error:
    fail(f"cannot import torch ({error}): install it with '{sys.executable} -m pip install torch'")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "python"))
from use_heed_attention import load_library, use_heed_attention  # noqa: E402

VOCAB = 512
LONGEST = 32768

# query [B, H, L, D], key and value [B, G, L, D], window
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Optional[int]], torch.Tensor]


def heed_attend(query, key, value, window):
    return torch.ops.heed.attend(query, key, value, causal=True, window=window)


def sdpa_attend(query, key, value, window):
    if window is None:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    positions = torch.arange(query.size(2), device=query.device)
    distances = positions.unsqueeze(1) - positions  # [L, L]
    mask = (distances >= 0) & (distances < window)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Attention(torch.nn.Module):
    def __init__(self, options: argparse.Namespace, attend: Attend) -> None:
        super().__init__()
        self.heads, self.groups = options.heads, options.groups
        self.head_dim = options.width // options.heads
        self.window = options.window or None
        self.attend = attend
        rows = (self.heads + 2 * self.groups) * self.head_dim
        self.qkv = torch.nn.Linear(options.width, rows, bias=False)
        self.out = torch.nn.Linear(options.width, options.width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        query, key, value = heads.split((self.heads, self.groups, self.groups), 1)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        output = self.attend(query, key, value, self.window)  # [B, H, L, D]
        return self.out(output.transpose(1, 2).flatten(2))


class Block(torch.nn.Module):
    def __init__(self, options: argparse.Namespace, attend: Attend) -> None:
        super().__init__()
        self.attention_norm = torch.nn.RMSNorm(options.width, eps=1e-6)
        self.attention = Attention(options, attend)
        self.feed_forward_norm = torch.nn.RMSNorm(options.width, eps=1e-6)
        self.feed_forward = torch.nn.Sequential(
            torch.nn.Linear(options.width, 4 * options.width),
            torch.nn.GELU(),
            torch.nn.Linear(4 * options.width, options.width),
        )

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.feed_forward_norm(x))


class LanguageModel(torch.nn.Module):
    def __init__(self, options: argparse.Namespace, attend: Attend) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCAB, options.width)
        self.blocks = torch.nn.ModuleList(Block(options, attend) for _ in range(options.layers))
        self.norm = torch.nn.RMSNorm(options.width, eps=1e-6)
        self.head = torch.nn.Linear(options.width, VOCAB, bias=False)
        half = options.width // options.heads // 2
        self.register_buffer("rates", 10000.0 ** (-torch.arange(half) / half))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.size(1), device=tokens.device)
        angles = positions.unsqueeze(1) * self.rates  # [L, D / 2]
        cos, sin = angles.cos(), angles.sin()
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def exported(model: LanguageModel, tokens: torch.Tensor) -> ExportedProgram:
    sizes = {"tokens": {1: Dim("length", min=2, max=LONGEST)}}
    return torch.export.export(model, (tokens,), dynamic_shapes=sizes)


def write_script(model: LanguageModel, tokens: torch.Tensor, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit")  # deprecated, and still loaded
        torch.jit.trace(model, (tokens,)).save(str(path))
    print(path)


def write_package(program: ExportedProgram, path: Path) -> None:
    try:
        aoti_compile_and_package(program, package_path=str(path))
    except RuntimeError as error:
        if "InvalidCxxCompiler" not in f"{type(error).__name__} {error}":
            raise
        fail("AOTInductor needs a C++ compiler: install g++, or name one with CXX")
    print(path)


def export(options: argparse.Namespace) -> None:
    # torch's own modules warn of each other while they export.
    warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg")
    torch.manual_seed(options.seed)
    sdpa = LanguageModel(options, sdpa_attend).eval()
    heed = LanguageModel(options, heed_attend).eval()
    heed.load_state_dict(sdpa.state_dict())
    tokens = torch.randint(VOCAB, (options.batch, options.length))
    with torch.no_grad():
        logits = sdpa(tokens)
        torch.save({"tokens": tokens, "logits": logits}, options.out / "expected.pt")
        write_script(heed, tokens, options.out / "heed.pt")
        write_package(exported(heed, tokens), options.out / "heed.pt2")
        write_package(exported(sdpa, tokens), options.out / "sdpa.pt2")
        changed = exported(sdpa, tokens)
        print(use_heed_attention(changed))
        write_package(changed, options.out / "changed.pt2")


def at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} must be at least {least}")
        return value

    return number


def parse() -> argparse.Namespace:
    summary, _, details = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument("--library", type=Path, default=Path("libheed_ops.so"), metavar="FILE",
                        help="heed's operators (libheed_ops.so)")
    for name, default, least, explanation in (
        ("batch", 1, 1, "sequences"),
        ("length", 2048, 2, "tokens in each"),
        ("layers", 4, 1, "blocks"),
        ("width", 512, 2, "size of a token's vector"),
        ("heads", 8, 1, "query heads"),
        ("groups", 2, 1, "key/value heads"),
        ("window", 256, 0, "keys that a query sees; 0: all before it"),
        ("seed", 0, 0, "of the weights and tokens"),
    ):
        parser.add_argument(f"--{name}", type=at_least(least), default=default, metavar="N",
                            help=f"{explanation} ({default})")
    options = parser.parse_args()
    if options.width % (2 * options.heads) != 0:
        parser.error(f"--width ({options.width}) must be a multiple of twice --heads "
                     f"({options.heads})")
    if options.heads % options.groups != 0:
        parser.error(f"--heads ({options.heads}) must be a multiple of --groups "
                     f"({options.groups})")
    return options


def main() -> None:
    options = parse()
    load_library(options.library)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        export(options)
    except OSError as error:
        fail(f"cannot write {options.out}: {error.strerror or error}")


if __name__ == "__main__":
    main()
