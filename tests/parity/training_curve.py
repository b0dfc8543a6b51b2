#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Write how transformers trains a small LlamaForCausalLM, for training_curve_test.cpp.

    training_curve.py FILE [--batch N]

FILE is a safetensors file:

    model.*          the parameters at the start
    batches          [steps, N, L + 1]: each row counts on by a number of its own
    learning_rates   float64 [steps]: a warm-up, then half a cosine
    losses           float64 [steps], of the float32 model before each step
"""

import argparse
import math
import sys
from pathlib import Path

try:
    import torch
    from safetensors.torch import save_file
    from torch.nn.functional import cross_entropy
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError as error:
    sys.exit(f"training_curve.py: cannot import torch, safetensors or transformers ({error})")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from seeds import moved  # noqa: E402

STEPS, LENGTH, VOCABULARY = 200, 64, 96


def make_model() -> LlamaForCausalLM:
    """Its weights begin larger than the 0.02 that transformers draws by default, and so it learns sooner."""
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=344, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=LENGTH, rms_norm_eps=1e-5,
        tie_word_embeddings=True, use_cache=False, attn_implementation="sdpa", initializer_range=0.08))


def make_batches(rows: int) -> torch.Tensor:
    first, stride = torch.randint(VOCABULARY, (STEPS, rows, 1)), torch.randint(1, 8, (STEPS, rows, 1))
    return (first + stride * torch.arange(LENGTH + 1)) % VOCABULARY


def make_learning_rates(highest: float = 3e-3, warm_up: int = 20) -> list[float]:
    """They fall, because with 3e-3 to the end rounding errors move the last losses by 0.02."""
    return [highest * min(1.0, (step + 1) / warm_up) * (0.55 + 0.45 * math.cos(math.pi * step / STEPS))
            for step in range(STEPS)]


def train(model: LlamaForCausalLM, batches: torch.Tensor, learning_rates: list[float]) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    losses = []
    for tokens, learning_rate in zip(batches, learning_rates):
        optimizer.param_groups[0]["lr"] = learning_rate
        scores = model(input_ids=tokens[:, :-1]).logits
        loss = cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--batch", type=int, default=16, help="sequences in a batch")
    arguments = parser.parse_args()
    torch.manual_seed(moved(0))
    model, batches = make_model(), make_batches(arguments.batch)
    start = {f"model.{name}": parameter.detach().clone() for name, parameter in model.named_parameters()}
    learning_rates = make_learning_rates()
    losses = train(model, batches, learning_rates)
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    save_file({**start, "batches": batches,
               "learning_rates": torch.tensor(learning_rates, dtype=torch.double),
               "losses": torch.tensor(losses, dtype=torch.double)}, arguments.file)


if __name__ == "__main__":
    main()
