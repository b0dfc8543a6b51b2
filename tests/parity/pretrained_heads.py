#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Write small models with the heads of tasks, or without a head, and what they compute.

    pretrained_heads.py write FOLDER
    pretrained_heads.py check FOLDER    what pretrained_heads_test.cpp saved in FOLDER/NAME/saved

FOLDER/heads.txt has a line for each model: NAME and the task, separated by a tab. FOLDER/NAME is a
folder as transformers saves it, besides expected.pt with these tensors:

    tokens [B, 28], lengths [B]; types [B, 28] of models that have them
    scores: [B, C], or [B, 28, ..] with 0 behind each sequence's end
    loss: the mean of (scores * loss.factors)^2; gradient.NAME: by transformers' names
"""

import copy
import zlib
from pathlib import Path

import torch
import transformers as hf

import pretrained_cases
from pretrained import LENGTHS, check_saved, draw_tokens, gradients, main, moved, randomize, save

CLASSES = {"sequence": hf.AutoModelForSequenceClassification,
           "token": hf.AutoModelForTokenClassification, "masked": hf.AutoModelForMaskedLM,
           "states": hf.AutoModel}
FAMILIES = {"bert", "camembert", "distilbert", "modernbert", "roberta", "xlm-roberta", "gemma",
            "gemma2", "gemma3_text", "gpt2", "gpt_neox", "llama", "mistral", "olmo2", "phi3", "qwen2",
            "qwen3", "smollm3", "stablelm"}
WITHOUT_TOKENS = {"gemma3_text", "olmo2"}  # which have no class for them
PADDING = 3
VARIANTS = 2  # of each family


def tasks_of(family: str, kind: str) -> list:
    if kind == "text_encoder":
        return ["sequence", "token", "masked"]
    return ["sequence", "states"] + ([] if family in WITHOUT_TOKENS else ["token"])


def adapted(config: hf.PreTrainedConfig, family: str, variant: int) -> hf.PreTrainedConfig:
    """The first variant of a decoder has a padding token, and the other one has none."""
    config = copy.deepcopy(config)
    config.num_labels = [1, 5][variant]
    if not hasattr(config, "type_vocab_size") and family not in ("distilbert", "modernbert"):
        config.pad_token_id = PADDING if variant == 0 else None
    if family == "bert":  # fields of published rerankers
        config.sbert_ce_default_activation_function = "torch.nn.modules.linear.Identity"
        config.sentence_transformers = {"activation_fn": "torch.nn.modules.linear.Identity"}
    if family == "modernbert":
        config.classifier_pooling = ["mean", "cls"][variant]
        config.classifier_bias = variant == 1
        config.classifier_activation = ["gelu", "relu"][variant]
        config.decoder_bias = variant == 0
    return config


def cases() -> dict:
    """Name -> (task, config)."""
    found, variants = {}, {}
    for name, (kind, config) in pretrained_cases.cases().items():
        family = config.model_type
        variant = variants.get(family, 0)
        if family not in FAMILIES or variant == VARIANTS:
            continue
        variants[family] = variant + 1
        for task in tasks_of(family, kind):
            found[f"{name}-{task}"] = (task, adapted(config, family, variant))
    return found


def make(name: str, task: str, config: hf.PreTrainedConfig) -> torch.nn.Module:
    torch.manual_seed(moved(zlib.crc32(name.encode())))
    model = CLASSES[task].from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    randomize(model)
    return model


def draw_inputs(model: torch.nn.Module) -> dict:
    """A padded batch; one whole sequence if the model does not know padding."""
    config = model.config
    whole = config.pad_token_id is None
    lengths = torch.tensor(LENGTHS[:1] if whole else LENGTHS)
    inputs = {"tokens": draw_tokens(model, len(lengths), max(LENGTHS)), "lengths": lengths}
    real = real_tokens(inputs)
    inputs["tokens"][~real] = config.pad_token_id or 0
    if getattr(config, "type_vocab_size", 0) > 1:
        inputs["types"] = torch.randint(config.type_vocab_size, real.shape) * real
    return inputs


def real_tokens(inputs: dict) -> torch.Tensor:
    return torch.arange(inputs["tokens"].shape[1]) < inputs["lengths"].unsqueeze(1)


def compute(model: torch.nn.Module, inputs: dict) -> torch.Tensor:
    types = {"token_type_ids": inputs["types"]} if "types" in inputs else {}
    real = real_tokens(inputs)
    output = model(inputs["tokens"], attention_mask=real.long(), **types)
    scores = output.logits if hasattr(output, "logits") else output.last_hidden_state
    return scores * real.unsqueeze(2) if scores.dim() == 3 else scores


def write_case(name: str, task: str, config: hf.PreTrainedConfig, folder: Path) -> None:
    model = make(name, task, config)
    tensors = save(name, model, folder)
    expected = draw_inputs(model)
    scores = compute(model, expected)
    expected["scores"] = scores.detach()
    expected["loss.factors"] = torch.randn_like(scores)
    loss = (scores * expected["loss.factors"]).square().mean()
    expected["loss"] = loss.detach()
    expected.update(gradients(model, loss, tensors))
    torch.save(expected, folder / "expected.pt")


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (task, config) in cases().items():
        write_case(name, task, config, folder / name)
    (folder / "heads.txt").write_text("".join(
        f"{name}\t{task}\n" for name, (task, _) in cases().items()))


def check(folder: Path) -> None:
    check_saved(folder, {name: CLASSES[task] for name, (task, _) in cases().items()}, compute)


if __name__ == "__main__":
    main(__doc__, {"write": write, "check": check})
