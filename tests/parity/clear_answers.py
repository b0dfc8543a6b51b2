# SPDX-License-Identifier: BSD-3-Clause
"""Text that models of transformers write, which rounding cannot change."""

import copy
import sys
from collections.abc import Callable

import torch


def generate(model: torch.nn.Module, draw: Callable[[], torch.Tensor], count: int) -> tuple:
    """(prompts, `count` new tokens of each). Prompts are drawn until each best token is ahead by far more
    than rounding, and the answers vary: by five tokens, or as far as 20 prompts let them, for a model with
    random weights may repeat itself."""
    found = []
    for _ in range(20):
        tokens = draw()
        fresh = copy.deepcopy(model)  # dynamic frequencies stay as the longest text left them
        output = fresh.generate(tokens, max_new_tokens=count, do_sample=False,
                                eos_token_id=None, pad_token_id=0, output_logits=True,
                                return_dict_in_generate=True)
        best = torch.stack(output.logits).topk(2).values
        if (best[..., 0] - best[..., 1]).min() <= 2e-4 * best.abs().max():
            continue
        answers = output.sequences[:, tokens.size(1):]
        found.append((answers.unique().numel(), tokens, answers))
        if found[-1][0] >= 5:
            break
    if not found:
        sys.exit("no prompt has clear answers")
    _, tokens, answers = max(found, key=lambda each: each[0])
    return tokens, answers
