# SPDX-License-Identifier: BSD-3-Clause
"""Changes of config.json, one at a time, and what the same weights compute then.

FOLDER/NAME/mutations has a folder for each change: its config.json, and links to the weights.
mutations.txt has a line for each: its number, the outcome, the field, and the change, separated by
tabs. The outcomes are:

    changes: Python computes the scores of mutations.pt, tensor NUMBER, of the first sequence
    same: Python computes what it computed before
    refused: load_pretrained must say that it does not support it, and name the field
    misfit: it must say that config.json contradicts the weights, or itself
"""

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path

import torch

from pretrained_cases import SIZES
from pretrained_changes import (CONTRADICTIONS, DELETED, DROPOUT, EVALUATED, EXTRA, OLD_INERT,
                                PRIMARY, TOKEN_IDS, UNSUPPORTED)


def names_of_sizes(family: str) -> tuple:
    """Of E, layers, F and V."""
    if family == "gpt2":
        return "n_embd", "n_layer", "n_inner", "vocab_size"
    if family == "distilbert":
        return "dim", "n_layers", "hidden_dim", "vocab_size"
    if family == "vit":
        return "hidden_size", "num_hidden_layers", "intermediate_size"
    if family.startswith("dinov2"):
        return "hidden_size", "num_hidden_layers"
    if family in ("qwen2_moe", "qwen3_moe"):
        return "hidden_size", "num_hidden_layers", "moe_intermediate_size", "vocab_size"
    return "hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size"


def is_decoder(config: dict) -> bool:
    return "CausalLM" in config["architectures"][0] or config["model_type"] in ("gpt2", "gemma3")


def fields_of_model(config: dict) -> tuple:
    """Those of the model that load_pretrained makes, and what changes have before their names."""
    if "text_config" in config:
        return config["text_config"], "text_config."
    return config, ""


def misfits(name: str, config: dict) -> list:
    """After which the weights have other shapes or names than the configuration says."""
    changes = list(CONTRADICTIONS.get(name, []))
    if is_decoder(config):
        changes.append({"tie_word_embeddings": not config["tie_word_embeddings"]})
    if name in PRIMARY:
        fields, place = fields_of_model(config)
        embedding, layers, *others = names_of_sizes(config["model_type"])
        sizes = {embedding: fields[embedding] + 32, layers: fields[layers] - 1,
                 **{key: (fields[key] or 256) + 1 for key in others}}
        changes += [{place + key: size} for key, size in sizes.items()]
        changes.append({place + layers: fields[layers] + 1})
        changes += [{place + key: DELETED} for key in sizes if key != "n_inner"]
    return changes


def refused(name: str, config: dict) -> list:
    """What load_pretrained must refuse."""
    changes = list(UNSUPPORTED.get(name, []))
    if name in PRIMARY:
        fields, place = fields_of_model(config)
        activation = next(key for key in ("hidden_act", "activation_function", "hidden_activation",
                                          "activation") if key in fields)
        changes += [{prefix + key: value} for key, value in EXTRA.items()
                    for prefix in dict.fromkeys(["", place])]
        changes += [{place + activation: "relu2"}, {place + activation: "no such"}]
    return changes


def evaluated(name: str, config: dict) -> list:
    """What Python knows."""
    changes = list(EVALUATED.get(name, []))
    if name in PRIMARY:
        fields, place = fields_of_model(config)
        inert = {**OLD_INERT, **(TOKEN_IDS if "bos_token_id" in fields else {})}
        changes += [{key: value} for key, value in inert.items()]
        if "attention_dropout" in fields:
            changes += [{place + key: value} for key, value in DROPOUT.items()]
        if not is_decoder(config) and "tie_word_embeddings" in config:
            changes.append({"tie_word_embeddings": False})  # of the head
        if is_decoder(config):
            changes.append({"pad_token_id": 3})
        kept = SIZES | {"model_type", "pad_token_id", "text_config", "vision_config"}
        changes += [{prefix + key: DELETED} for own, prefix in ((config, ""), (fields, place))
                    for key in own if key not in kept]
    unique = {repr(sorted(change.items())): change for change in changes}
    return list(unique.values())


def changed(config: dict, change: dict) -> dict:
    config = copy.deepcopy(config)
    for path, value in change.items():
        *parents, field = path.split(".")
        place = config
        for parent in parents:
            place = place[parent]
        if value is DELETED:
            place.pop(field, None)
        else:
            place[field] = value
    return config


def written(change: dict) -> str:
    return json.dumps({path: "(deleted)" if value is DELETED else value
                       for path, value in change.items()})


class Case:
    """A folder of a model, in whose folder `mutations` the changes are written."""

    def __init__(self, name: str, folder: Path, auto: type, scores: torch.Tensor,
                 compute: Callable[[torch.nn.Module], torch.Tensor], changes: tuple):
        self.folder, self.auto, self.scores, self.compute = folder, auto, scores, compute
        self.config = json.loads((folder / "config.json").read_text())
        self.lines, self.tensors = [], {}
        self.keys = self.loading_info(folder)[1]
        of_refused, of_misfits, of_evaluated = changes or (
            refused(name, self.config), misfits(name, self.config), evaluated(name, self.config))
        for change in of_refused:
            self.add("refused", change, self.write_folder(change))
        for change in of_misfits:
            self.add("misfit", change, self.write_folder(change))
        for change in of_evaluated:
            place = self.write_folder(change)
            self.add(self.outcome(place), change, place)

    def write_folder(self, change: dict) -> Path:
        place = self.folder / "mutations" / str(len(self.lines))
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps(changed(self.config, change)))
        for path in self.folder.glob("*model*"):
            os.symlink(Path("../..") / path.name, place / path.name)
        return place

    def add(self, outcome: str, change: dict, place: Path) -> None:
        field = list(change)[-1].split(".")[-1]
        self.lines.append(f"{place.name}\t{outcome}\t{field}\t{written(change)}\n")

    def loading_info(self, place: Path) -> tuple:
        model, info = self.auto.from_pretrained(place, attn_implementation="eager",
                                                dtype=torch.float32, output_loading_info=True)
        return model, {key: info[key] for key in ("missing_keys", "unexpected_keys")}

    def outcome(self, place: Path) -> str:
        try:
            model, keys = self.loading_info(place)
            if keys != self.keys:
                return "misfit"  # the weights have other names
            with torch.no_grad():
                scores = self.compute(model)
        except (RuntimeError, ValueError, KeyError, TypeError):
            return "misfit"  # the weights have other shapes, or sizes contradict each other
        difference = (scores - self.scores).abs().max() / self.scores.abs().max()
        if difference < 1e-6:
            return "same"
        # heed's scores may differ by 1e-5; another form of GELU changes them by 1e-4.
        assert difference > 3e-5, f"{place}: a change of {difference} is lost in rounding"
        self.tensors[place.name] = scores
        return "changes"

    def changing_fields(self) -> set:
        """Of the first floor of config.json."""
        rows = [line.rstrip("\n").split("\t") for line in self.lines]
        changes = [json.loads(row[3]) for row in rows if row[1] == "changes"]
        return {field for change in changes if len(change) == 1 for field in change
                if field in self.config}


def write(name: str, folder: Path, auto: type, scores: torch.Tensor,
          compute: Callable[[torch.nn.Module], torch.Tensor], changes: tuple = ()) -> set:
    """scores are what `compute` returns before a change. `changes` are those that are refused, that
    contradict the weights, and that Python evaluates; by default those of the name. Returns the fields
    that change the scores."""
    case = Case(name, folder, auto, scores, compute, changes)
    if case.lines:
        (folder / "mutations" / "mutations.txt").write_text("".join(case.lines))
        torch.save(case.tensors, folder / "mutations" / "mutations.pt")
    return case.changing_fields()
