#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Write small models with adapters as PEFT saves them, and what they compute.

    adapters.py write FOLDER
    adapters.py check FOLDER    what adapters_test.cpp saved in FOLDER/NAME/saved

FOLDER/adapters.txt has a line for each adapter: NAME and the task, separated by a tab. FOLDER/NAME/model
and FOLDER/NAME/adapter are folders as transformers and PEFT save them; FOLDER/NAME/expected.pt has
these tensors:

    tokens [2, 13]; target [2, 9] of an encoder-decoder; scores [2, 13, V], [2, 9, V] or [2, C]
    loss: the mean of (scores * loss.factors)^2; gradient.NAME: by the adapter file's names
"""

import copy
import sys
import zlib
from pathlib import Path

import peft
import torch
import transformers as hf

import encoder_decoders
import pretrained_cases
from pretrained import draw_tokens, main, moved, randomize

CAUSAL, SEQUENCE = hf.AutoModelForCausalLM, hf.AutoModelForSequenceClassification
PAIR = hf.AutoModelForSeq2SeqLM
TASKS = {CAUSAL: "decoder", SEQUENCE: "sequence", PAIR: "encoder_decoder"}
LENGTH = 13
PICKLED = {"patterns", "dora", "classifier"}  # whose tensors are in an adapter_model.bin
# Name -> (class, the case of pretrained_cases.py or encoder_decoders.py, the adapter's options).
ADAPTERS = {
    "plain": (CAUSAL, "llama-plain", {"r": 3, "lora_alpha": 5, "lora_dropout": 0.25,
                                      "target_modules": ["q_proj", "v_proj"]}),
    "all": (CAUSAL, "qwen2-plain", {"r": 2, "target_modules": "all-linear"}),
    "patterns": (CAUSAL, "llama-plain", {
        "r": 2, "lora_alpha": 7, "target_modules": ["q_proj", "o_proj", "down_proj"],
        "rank_pattern": {"layers.1.self_attn.q_proj": 5, "down_proj": 3},
        "alpha_pattern": {r"layers\.2\..*o_proj": 11}}),
    "layers": (CAUSAL, "llama-biases", {"r": 4, "target_modules": ["q_proj", "gate_proj"],
                                        "layers_to_transform": [1, 2], "layers_pattern": "layers"}),
    "expression": (CAUSAL, "mistral-window", {
        "r": 4, "target_modules": r".*\.(0|2)\.(self_attn\.k_proj|mlp\.up_proj)"}),
    "stabilized": (CAUSAL, "gemma2-plain", {"r": 6, "use_rslora": True, "lora_alpha": 3,
                                            "target_modules": ["k_proj", "up_proj"]}),
    "dora": (CAUSAL, "llama-biases", {"r": 3, "use_dora": True,
                                      "target_modules": ["q_proj", "down_proj"]}),
    "all_biases": (CAUSAL, "llama-biases", {"r": 3, "bias": "all", "target_modules": ["q_proj"]}),
    "own_biases": (CAUSAL, "qwen2-plain", {"r": 3, "bias": "lora_only",
                                           "target_modules": ["q_proj", "v_proj"]}),
    "head": (CAUSAL, "llama-plain", {"r": 3, "target_modules": ["q_proj", "lm_head"],
                                     "modules_to_save": ["embed_tokens", "norm"]}),
    "packed": (CAUSAL, "gpt2-plain", {"r": 4, "target_modules": ["c_attn", "c_proj"],
                                      "fan_in_fan_out": True}),
    "packed_dora": (CAUSAL, "gpt2-plain", {"r": 2, "use_dora": True, "bias": "all",
                                           "target_modules": ["c_attn"]}),
    "by_heads": (CAUSAL, "gpt_neox-parallel", {"r": 3, "target_modules": ["query_key_value"]}),
    "phi3": (CAUSAL, "phi3-long", {"r": 3, "target_modules": ["qkv_proj", "gate_up_proj"]}),
    "classifier": (SEQUENCE, "bert-plain", {"r": 3, "task_type": "SEQ_CLS",
                                            "target_modules": ["query", "value"]}),
    "roberta": (SEQUENCE, "roberta-plain", {"r": 2, "task_type": "SEQ_CLS",
                                            "target_modules": "all-linear"}),
    "decoder_classifier": (SEQUENCE, "llama-plain", {"r": 2, "task_type": "SEQ_CLS",
                                                     "target_modules": ["v_proj"]}),
    "t5": (PAIR, "t5-gated", {"r": 3, "target_modules": ["q", "v", "wo", "lm_head"],
                              "task_type": "SEQ_2_SEQ_LM"}),
    "umt5": (PAIR, "umt5-plain", {"r": 2, "use_dora": True, "target_modules": r".*\.EncDecAttention\.k"}),
    "bart": (PAIR, "bart-scaled", {"r": 2, "bias": "lora_only", "target_modules": "all-linear",
                                   "task_type": "SEQ_2_SEQ_LM"}),
    "marian": (PAIR, "marian-apart", {"r": 3, "target_modules": ["q_proj", "fc2"],
                                      "modules_to_save": ["final_layer_norm"]}),
}


def make(name: str) -> tuple:
    """The model with its adapter, and the model alone."""
    auto, case, options = ADAPTERS[name]
    torch.manual_seed(moved(zlib.crc32(name.encode())))
    if auto is PAIR:
        return add_adapter(encoder_decoders.make(case, encoder_decoders.cases()[case]), options)
    config = copy.deepcopy(pretrained_cases.cases()[case][1])
    config.num_labels = 3
    if auto is SEQUENCE:
        config.pad_token_id = 0
    model = auto.from_config(config, attn_implementation="eager").eval()
    randomize(model)
    return add_adapter(model, options)


def add_adapter(model: torch.nn.Module, options: dict) -> tuple:
    base = copy.deepcopy(model)
    adapted = peft.get_peft_model(model, peft.LoraConfig(**options))
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return adapted.eval(), base


def compute(model: torch.nn.Module, given: dict) -> torch.Tensor:
    tokens, target = given["tokens"], given.get("target")
    more = {} if target is None else {"decoder_input_ids": target}
    return model(input_ids=tokens, attention_mask=torch.ones_like(tokens), **more).logits


def file_name(name: str) -> str:
    """The name that a parameter has in the adapter's file."""
    name = name.replace("lora_magnitude_vector.default.weight", "lora_magnitude_vector")
    return name.replace(".modules_to_save.default", "").replace(".default", "")


def write_case(name: str, folder: Path) -> None:
    adapted, base = make(name)
    base.save_pretrained(folder / "model")
    adapted.save_pretrained(folder / "adapter", save_embedding_layers=False,
                            safe_serialization=name not in PICKLED)
    given = {"tokens": draw_tokens(base, 2, LENGTH)}
    if base.config.is_encoder_decoder:
        given["target"] = encoder_decoders.draw_target(base, 2)
    scores = compute(adapted, given)
    factors = torch.randn_like(scores)
    loss = (scores * factors).square().mean()
    loss.backward()
    expected = {**given, "scores": scores.detach(), "loss.factors": factors, "loss": loss.detach()}
    for own_name, parameter in adapted.named_parameters():
        if parameter.requires_grad:
            expected["gradient." + file_name(own_name)] = parameter.grad
    torch.save(expected, folder / "expected.pt")


def write(folder: Path) -> None:
    for name in ADAPTERS:
        write_case(name, folder / name)
    (folder / "adapters.txt").write_text("".join(
        f"{name}\t{TASKS[auto]}\n" for name, (auto, _, _) in ADAPTERS.items()))


def check(folder: Path) -> None:
    failed = False
    for name, (auto, _, _) in ADAPTERS.items():
        model = auto.from_pretrained(folder / name / "model", attn_implementation="eager",
                                     dtype=torch.float32)
        adapted = peft.PeftModel.from_pretrained(model, folder / name / "saved").eval()
        expected = torch.load(folder / name / "expected.pt")
        with torch.no_grad():
            scores = compute(adapted, expected)
        difference = (scores - expected["scores"]).abs().max() / expected["scores"].abs().max()
        if not difference <= 1e-6:
            print(f"{name}: scores differ by {difference}", file=sys.stderr)
            failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main(__doc__, {"write": write, "check": check})
