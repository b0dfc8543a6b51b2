#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Write what transformers' generate does with options that change scores before they are sampled.

    sampling.py OUT

OUT is a file that torch::pickle_load reads in C++. For each case of CASES:

    NAME.prompt      int64 [rows, P]
    NAME.sequences   int64 [rows, P + steps], what is generated, the prompt first
    NAME.scores      [steps, rows, V], of the model
    NAME.output      [steps, rows, V], as the options leave them

and the options: NAME.repetition_penalty, NAME.no_repeat_ngram_size, NAME.min_new_tokens, each a number;
NAME.end_tokens; NAME.bias_tokens and NAME.bias_numbers. Scores are multiples of 1/64 and penalties powers
of 2, so that nothing is rounded.
"""

import sys
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from seeds import moved  # noqa: E402

VOCAB, ROWS, PROMPT, STEPS = 24, 3, 9, 14
BIAS = [[[4], 2.5], [[11], -1.75], [[0], 0.5]]
ENDS = [3, 5]
CASES = {
    "repetition_penalty": {"repetition_penalty": 2.0},
    "reward": {"repetition_penalty": 0.5},
    "1 token in a row": {"no_repeat_ngram_size": 1},
    "2 tokens in a row": {"no_repeat_ngram_size": 2},
    "3 tokens in a row": {"no_repeat_ngram_size": 3},
    "logit_bias": {"sequence_bias": BIAS},
    "min_new_tokens": {"min_new_tokens": 6, "eos_token_id": ENDS},
    "all": {"repetition_penalty": 2.0, "no_repeat_ngram_size": 2, "sequence_bias": BIAS,
            "min_new_tokens": 8, "eos_token_id": ENDS},
}  # fmt: skip


def make_model() -> torch.nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=48, max_position_embeddings=64,
        initializer_range=0.2, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def generate(model: torch.nn.Module, prompt: torch.Tensor, options: dict):
    """Where there are ends, they are the most likely tokens, so that all rows end as soon as they may."""
    favored = torch.zeros(VOCAB)
    favored[options.get("eos_token_id", [])] = 32.0

    def rounded(module, inputs, scores):
        return (scores * 64).round() / 64 + favored

    hook = model.lm_head.register_forward_hook(rounded)
    try:
        return model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=STEPS, do_sample=False,
            output_logits=True, output_scores=True, return_dict_in_generate=True, **options,
        )  # fmt: skip
    finally:
        hook.remove()


def main() -> None:
    out = Path(sys.argv[1])
    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(moved(0))
    model = make_model()
    result = {}
    for name, options in CASES.items():
        # Tokens of few kinds, so that some come again; never the last ones, so that some are new.
        prompt = torch.randint(VOCAB // 3, (ROWS, PROMPT))
        generated = generate(model, prompt, options)
        result[f"{name}.prompt"] = prompt
        result[f"{name}.sequences"] = generated.sequences
        result[f"{name}.scores"] = torch.stack(generated.logits)
        result[f"{name}.output"] = torch.stack(generated.scores)
        for field, value in options.items():
            if field == "sequence_bias":
                result[f"{name}.bias_tokens"] = torch.tensor([tokens[0] for tokens, _ in value])
                result[f"{name}.bias_numbers"] = torch.tensor([number for _, number in value]).double()
            elif field == "eos_token_id":
                result[f"{name}.end_tokens"] = torch.tensor(value)
            else:
                result[f"{name}.{field}"] = torch.tensor(value)
    out.parent.mkdir(parents=True, exist_ok=True)
    torch.save(result, out)


if __name__ == "__main__":
    main()
