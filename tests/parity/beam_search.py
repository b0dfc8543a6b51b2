#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Write the texts that transformers' generate finds with beams.

    beam_search.py OUT

For each model: OUT/NAME, its folder, and OUT/NAME.pt, which torch::pickle_load reads in C++. Those of
`decoders` continue prompts, those of PAIRS make targets of sources. OUT/pairs.txt has the names of these.
For each case, and its prompts of LENGTHS or its sources:

    CASE.prompts     int64 [N, P], padded on the left with PAD; what a target begins with
    CASE.lengths     int64 [N], the tokens of each prompt
    CASE.source      int64 [N, S], padded on the right, or frames [N, mels, T], of a pair
    CASE.source_lengths  int64 [N], the tokens of each source
    CASE.sequences   int64 [N, num_return_sequences, L], the tokens after the prompts, padded on the right
    CASE.scores      float32 [N, num_return_sequences]
    CASE.stopping    0, 1 and 2 for early_stopping False, True and "never"

and the options: CASE.num_beams, CASE.max_new_tokens, CASE.num_return_sequences and others, each a number;
CASE.end_tokens; CASE.bias_tokens and CASE.bias_numbers. Texts whose candidates are too close to tell apart
in float32 are not written: other prompts are drawn.
"""

import sys
from pathlib import Path

import torch
import transformers

import encoder_decoders

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from seeds import moved  # noqa: E402

VOCAB, PAD, MOST = 32, 31, 12
STOPPING = [False, True, "never"]
ENDS = [3, 0, 10, 20]
BIAS = [[[4], 1.5], [[11], -0.75]]
CASES = {
    "plain": {"num_beams": 4},
    "2 beams": {"num_beams": 2, "num_return_sequences": 2},
    "5 beams": {"num_beams": 5, "num_return_sequences": 3, "max_new_tokens": 20},
    "end": {"num_beams": 3, "num_return_sequences": 3, "eos_token_id": ENDS[3:]},
    "ends": {"num_beams": 4, "num_return_sequences": 4, "eos_token_id": ENDS},
    "immediate": {"num_beams": 4, "num_return_sequences": 4, "eos_token_id": ENDS, "early_stopping": True},
    "never": {"num_beams": 4, "num_return_sequences": 4, "eos_token_id": ENDS, "early_stopping": "never"},
    "no length penalty": {"num_beams": 3, "num_return_sequences": 3, "eos_token_id": ENDS,
                          "length_penalty": 0.0},
    "longer": {"num_beams": 3, "num_return_sequences": 3, "eos_token_id": ENDS, "length_penalty": 2.0},
    "shorter": {"num_beams": 3, "num_return_sequences": 3, "eos_token_id": ENDS, "length_penalty": -1.0},
    "longer, never": {"num_beams": 3, "num_return_sequences": 3, "eos_token_id": ENDS, "length_penalty": 1.5,
                      "early_stopping": "never"},
    "least": {"num_beams": 3, "num_return_sequences": 3, "eos_token_id": ENDS, "min_new_tokens": 5},
    "penalties": {"num_beams": 3, "num_return_sequences": 3, "eos_token_id": ENDS, "repetition_penalty": 1.4,
                  "no_repeat_ngram_size": 2, "sequence_bias": BIAS},
}  # fmt: skip
# The padding counts as tokens of the prompt in transformers, for these alone.
ALIKE = ["penalties"]
LENGTHS = [7, 3, 12]
PAIRS = ["t5-plain", "umt5-scaled", "bart-plain", "marian-apart", "whisper-plain"]
PAIR_ENDS = list(range(6, 70, 6))
PAIR_CASES = {
    "plain": {"num_beams": 4, "num_return_sequences": 2},
    "ends": {"num_beams": 4, "num_return_sequences": 4, "eos_token_id": PAIR_ENDS},
    "longer": {"num_beams": 3, "num_return_sequences": 3, "eos_token_id": PAIR_ENDS,
               "length_penalty": 2.0, "early_stopping": True},
    "never": {"num_beams": 2, "num_return_sequences": 2, "eos_token_id": PAIR_ENDS,
              "length_penalty": 0.5, "early_stopping": "never"},
    "forced": {"num_beams": 4, "num_return_sequences": 4, "eos_token_id": PAIR_ENDS,
               "forced_bos_token_id": 5, "forced_eos_token_id": PAIR_ENDS[0]},
    "penalties": {"num_beams": 3, "num_return_sequences": 3, "eos_token_id": PAIR_ENDS,
                  "min_new_tokens": 4, "repetition_penalty": 1.4, "no_repeat_ngram_size": 2,
                  "sequence_bias": BIAS},
}  # fmt: skip


def decoders() -> dict:
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": PAD}
    return {
        "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, intermediate_size=48, max_position_embeddings=64,
            initializer_range=0.15, **ends)),
        "gpt2": transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=VOCAB, n_embd=32, n_head=4, n_layer=2, n_positions=64,
            initializer_range=0.15, **ends)),
    }  # fmt: skip


def pair(name: str) -> torch.nn.Module:
    model = encoder_decoders.make(name, encoder_decoders.cases()[name])
    config = model.config
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=config.decoder_start_token_id, pad_token_id=config.pad_token_id)
    return model


def draw_prompts(model: torch.nn.Module, case: str) -> dict:
    lengths = [6] * 3 if case in ALIKE else LENGTHS
    prompts = torch.full((len(lengths), max(lengths)), PAD)
    mask = torch.zeros_like(prompts)
    for row, length in enumerate(lengths):
        prompts[row, -length:] = torch.randint(PAD, (length,))
        mask[row, -length:] = 1
    return {"prompts": prompts, "lengths": torch.tensor(lengths), "inputs": prompts,
            "attention_mask": mask}


def draw_sources(model: torch.nn.Module, case: str) -> dict:
    config = model.config
    source = encoder_decoders.draw_source(model, len(LENGTHS))
    drawn = {"prompts": torch.full((len(LENGTHS), 1), config.decoder_start_token_id),
             "lengths": torch.ones(len(LENGTHS), dtype=torch.long), "source": source,
             "inputs": source}
    if not source.is_floating_point():
        lengths = torch.tensor(encoder_decoders.LENGTHS)
        real = torch.arange(source.size(1)) < lengths.unsqueeze(1)
        source[~real] = config.pad_token_id
        drawn.update(source_lengths=lengths, attention_mask=real.long())
    return drawn


def search(model: torch.nn.Module, drawn: dict, options: dict):
    inputs = drawn["inputs"]
    if inputs.is_floating_point():
        inputs = inputs.to(model.dtype)
    # Whisper's own `generate` has many rules of its own.
    return transformers.GenerationMixin.generate(
        model, inputs, attention_mask=drawn.get("attention_mask"), do_sample=False,
        output_scores=True, return_dict_in_generate=True,
        **{"max_new_tokens": MOST, "num_return_sequences": 1, **options},
    )  # fmt: skip


def clear_texts(model: torch.nn.Module, draw, case: str, options: dict) -> tuple:
    """What is drawn, and what is found after it in float32, which is what is found in float64."""
    for _ in range(50):
        drawn = draw(model, case)
        found = search(model.float(), drawn, options)
        exact = search(model.double(), drawn, options)
        if found.sequences.equal(exact.sequences):
            return drawn, found
    raise RuntimeError("nothing was drawn whose texts float32 can tell apart")


def write(name: str, model: torch.nn.Module, draw, cases: dict, out: Path) -> None:
    model.eval().save_pretrained(out / name)
    result = {}
    for case, options in cases.items():
        drawn, found = clear_texts(model, draw, case, options)
        prompts = drawn["prompts"]
        returned = options.get("num_return_sequences", 1)
        texts = found.sequences[:, prompts.size(1) :]
        for field in ("prompts", "lengths", "source", "source_lengths"):
            if field in drawn:
                result[f"{case}.{field}"] = drawn[field]
        result[f"{case}.sequences"] = texts.reshape(len(prompts), returned, -1).contiguous()
        result[f"{case}.scores"] = found.sequences_scores.view(len(prompts), returned).float()
        result[f"{case}.stopping"] = torch.tensor(STOPPING.index(options.get("early_stopping", False)))
        for field, value in {"max_new_tokens": MOST, "num_return_sequences": 1, **options}.items():
            if field == "sequence_bias":
                result[f"{case}.bias_tokens"] = torch.tensor([tokens[0] for tokens, _ in value])
                result[f"{case}.bias_numbers"] = torch.tensor([number for _, number in value]).double()
            elif field == "eos_token_id":
                result[f"{case}.end_tokens"] = torch.tensor(value)
            elif field != "early_stopping":
                result[f"{case}.{field}"] = torch.tensor(value)
    torch.save(result, out / f"{name}.pt")


def main() -> None:
    out = Path(sys.argv[1])
    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(moved(0))
    for name, model in decoders().items():
        write(name, model, draw_prompts, CASES, out)
    for name in PAIRS:
        write(name, pair(name), draw_sources, PAIR_CASES, out)
    (out / "pairs.txt").write_text("".join(f"{name}\n" for name in PAIRS))


if __name__ == "__main__":
    main()
