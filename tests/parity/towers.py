#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Write small pairs of encoders of texts and images as transformers saves them, and their vectors.

    towers.py write FOLDER
    towers.py check FOLDER    what towers_test.cpp saved in FOLDER/NAME/saved-text and saved-image

FOLDER/cases.txt has a line for each model: its name and its towers, "text", "image" or both,
separated by a tab. FOLDER/NAME is a folder as transformers saves it, besides TOWER.pt with these
tensors of each of its towers:

    inputs: tokens [3, 11], which end before their padding, or images [2, C, I, I]
    lengths [3] of texts, with their ends
    states: the hidden states, 0 behind the ends of texts; pooled: without a mask
    masked.pooled: with the padding hidden
    loss: the mean of (pooled * loss.factors)^2 or, where nothing is pooled, of the states;
        gradient.NAME: by transformers' names
    bfloat16.pooled: of the model in bfloat16

FOLDER/NAME/mutations is what pretrained_mutations.py writes for the first tower, and that in
FOLDER/NAME/image for the second one.
"""

import copy
import json
import os
import sys
import zlib
from pathlib import Path

import torch
import transformers as hf
from safetensors.torch import load_file

import pretrained_mutations
from pretrained import main, moved, randomize
from pretrained_changes import DELETED

LENGTH, LENGTHS, FIRST = 11, [11, 4, 8], 5
BEGIN, END = 6, 60
TEXT = dict(vocab_size=70, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=4, max_position_embeddings=20, layer_norm_eps=1e-2)
OTHER_TEXT = dict(vocab_size=66, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
                  num_attention_heads=3, max_position_embeddings=LENGTH, layer_norm_eps=0.05)
IMAGE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
             image_size=12, patch_size=4, layer_norm_eps=1e-2)
# Two rows and two columns of pixels fill no patch.
OTHER_IMAGE = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
                   image_size=17, patch_size=5, num_channels=1, layer_norm_eps=0.05)
CLIP_TOWERS = {"text": ("text_config", "CLIPTextModelWithProjection"),
               "image": ("vision_config", "CLIPVisionModelWithProjection")}


def cases() -> dict:
    """Name -> (class, config)."""
    ends = {"eos_token_id": END, "bos_token_id": 3, "pad_token_id": 1}
    mistaken = {"eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 1}
    relu = {"hidden_act": "relu"}
    return {
        "clip-plain": (hf.CLIPModel, hf.CLIPConfig(
            text_config={**TEXT, **ends}, vision_config=IMAGE, projection_dim=20)),
        "clip-largest": (hf.CLIPModel, hf.CLIPConfig(
            text_config={**OTHER_TEXT, **mistaken, **relu},
            vision_config={**OTHER_IMAGE, "hidden_act": "gelu"}, projection_dim=28)),
        "clip-classifier": (hf.CLIPForImageClassification, hf.CLIPConfig(
            text_config=TEXT, vision_config=IMAGE, projection_dim=20)),
        "clip_text_model-plain": (hf.CLIPTextModel, hf.CLIPTextConfig(**TEXT, **ends)),
        "clip_text_model-projected": (hf.CLIPTextModelWithProjection, hf.CLIPTextConfig(
            **OTHER_TEXT, **mistaken, **relu, projection_dim=28)),
        "clip_vision_model-plain": (hf.CLIPVisionModel, hf.CLIPVisionConfig(**IMAGE)),
        "clip_vision_model-projected": (hf.CLIPVisionModelWithProjection, hf.CLIPVisionConfig(
            **OTHER_IMAGE, **relu, projection_dim=28)),
        "siglip-plain": (hf.SiglipModel, hf.SiglipConfig(text_config=TEXT, vision_config=IMAGE)),
        "siglip-relu": (hf.SiglipModel, hf.SiglipConfig(
            text_config={**OTHER_TEXT, **relu, "projection_size": 28},
            vision_config={**OTHER_IMAGE, **relu})),
        "siglip_text_model-plain": (hf.SiglipTextModel, hf.SiglipTextConfig(**TEXT)),
        "siglip_text_model-projected": (hf.SiglipTextModel, hf.SiglipTextConfig(
            **OTHER_TEXT, **relu, projection_size=28)),
        "siglip_vision_model-plain": (hf.SiglipVisionModel, hf.SiglipVisionConfig(**IMAGE)),
        "siglip_vision_model-headless": (hf.SiglipVisionModel, hf.SiglipVisionConfig(
            **OTHER_IMAGE, **relu, vision_use_head=False)),
    }


def towers_of(name: str) -> list:
    if "text_model" in name:
        return ["text"]
    return ["image"] if "vision_model" in name or "classifier" in name else ["text", "image"]


def config_of(config: hf.PreTrainedConfig, tower: str) -> hf.PreTrainedConfig:
    return getattr(config, "text_config" if tower == "text" else "vision_config", config)


def pooled_of(model: torch.nn.Module, tower: str, inputs: torch.Tensor, **options) -> tuple:
    """(hidden states, pooled vectors or None)."""
    if hasattr(model, "get_text_features"):
        call = model.get_text_features if tower == "text" else model.get_image_features
        output = call(inputs, **options)
    elif hasattr(model, "classifier"):
        output = model.vision_model(inputs)
    else:
        output = model(inputs, **options)
    pooled = output.text_embeds if hasattr(output, "text_embeds") else \
        output.image_embeds if hasattr(output, "image_embeds") else output.pooler_output
    return output.last_hidden_state, pooled


def draw_texts(config: hf.PreTrainedConfig) -> torch.Tensor:
    end = config.eos_token_id if config.eos_token_id == END else config.vocab_size - 1
    tokens = torch.randint(FIRST, min(end, config.vocab_size), (len(LENGTHS), LENGTH))
    for row, length in zip(tokens, LENGTHS):
        row[length - 1:] = end  # as CLIP pads its texts
    tokens[1, LENGTHS[1]:] = 1
    tokens[:, 0] = BEGIN
    if end == END:
        tokens[2, 2] = config.vocab_size - 1  # larger than the end
    return tokens


def draw_images(config: hf.PreTrainedConfig) -> torch.Tensor:
    return torch.randn(2, config.num_channels, config.image_size, config.image_size)


def make(name: str) -> torch.nn.Module:
    kind, config = cases()[name]
    torch.manual_seed(moved(zlib.crc32(name.encode())))
    config = copy.deepcopy(config)
    config._attn_implementation = "eager"
    model = kind(config).eval()
    randomize(model)
    with torch.no_grad():  # the weights of transformers are small: states would hardly differ
        for key, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.add_(0.15 * torch.randn_like(parameter))
    return model


def gradients(model: torch.nn.Module, loss: torch.Tensor, tensors: dict) -> dict:
    """By the names in files."""
    loss.backward()
    found = {}
    for parameter in model.parameters():
        if parameter.grad is None:
            continue
        names = [key for key, tensor in tensors.items() if torch.equal(tensor, parameter.detach())]
        assert len(names) == 1, names
        found[f"gradient.{names[0]}"] = parameter.grad.contiguous()
    return found


def expected_of(name: str, tower: str, model: torch.nn.Module, folder: Path, tensors: dict) -> dict:
    config = config_of(model.config, tower)
    expected = {}
    options = {}
    if tower == "text":
        inputs = draw_texts(config)
        expected["lengths"] = torch.tensor(LENGTHS)
        real = torch.arange(LENGTH) < expected["lengths"].unsqueeze(1)
        with torch.no_grad():
            options = {"attention_mask": real.long()}
            states, expected["masked.pooled"] = pooled_of(model, tower, inputs, **options)
            expected["states"] = states * real.unsqueeze(2)
    else:
        inputs = draw_images(config)
        with torch.no_grad():
            expected["states"] = pooled_of(model, tower, inputs)[0]
    expected["inputs"] = inputs
    states, pooled = pooled_of(model, tower, inputs)
    output = states if pooled is None else pooled
    expected["loss.factors"] = torch.randn_like(output)
    loss = (output * expected["loss.factors"]).square().mean()
    expected["loss"], expected["pooled"] = loss.detach(), output.detach()
    expected.update(gradients(model, loss, tensors))
    rounded = type(model).from_pretrained(folder, dtype=torch.bfloat16,
                                          attn_implementation="eager").eval()
    with torch.no_grad():
        given = inputs if tower == "text" else inputs.bfloat16()
        states, pooled = pooled_of(rounded, tower, given)
        expected["bfloat16.pooled"] = (states if pooled is None else pooled).float()
    return expected


def changes_of(name: str, config: dict, tower: str) -> tuple:
    """(refused, misfit, evaluated) changes of config.json."""
    field = "text_config" if tower == "text" else "vision_config"
    is_pair = field in config
    place = f"{field}." if is_pair else ""
    fields = config[field] if is_pair else config
    is_clip = "clip" in config["model_type"] and "siglip" not in config["model_type"]
    refused = [{"frobnicate": 3}, {place + "frobnicate": 3}, {place + "hidden_act": "no such"},
               {place + "is_decoder": True}, {place + "num_attention_heads": 0},
               {place + "layer_norm_eps": -1.0}, {"model_type": "no such model"},
               {place + "add_cross_attention": True},
               {"quantization_config": {"quant_method": "gptq", "bits": 4}}]
    misfit = [{place + key: fields[key] + more} for key, more in (
        ("hidden_size", 12), ("num_hidden_layers", 1), ("num_hidden_layers", -1),
        ("intermediate_size", 1))]
    evaluated = [{place + "hidden_act": other} for other in ("gelu", "silu", "quick_gelu")
                 if other != fields["hidden_act"]]
    evaluated += [{place + "layer_norm_eps": 0.3}, {place + "attention_dropout": 0.4},
                  {place + "num_attention_heads": 2 * fields["num_attention_heads"]},
                  {"initializer_factor": 3.0}, {"torch_dtype": "float16"}, {"dtype": "bfloat16"},
                  {"tie_word_embeddings": False}, {place + "tie_word_embeddings": False}]
    if tower == "text":
        misfit += [{place + "vocab_size": 71}, {place + "max_position_embeddings": 30}]
        evaluated += [{place + "pad_token_id": 3}, {place + "bos_token_id": 9}]
        if is_clip:
            refused += [{place + "eos_token_id": [2, 3]}, {place + "eos_token_id": None},
                        {place + "eos_token_id": -1}]
            evaluated += [{place + "eos_token_id": end} for end in (2, BEGIN)]
            misfit.append({place + "eos_token_id": 49407})  # above the vocabulary
        else:
            misfit.append({place + "projection_size": 17})
            evaluated += [{place + "eos_token_id": 7}]
    else:
        refused += [{place + "image_size": [12, 8]}, {place + "patch_size": 0}]
        misfit += [{place + "num_channels": fields["num_channels"] + 1},
                   {place + "patch_size": 3}, {place + "image_size": 40}]
        if not is_clip:
            misfit.append({place + "vision_use_head": not fields["vision_use_head"]})
    if is_clip and is_pair:
        misfit.append({"projection_dim": 13})
        evaluated += [{place + "projection_dim": 13}, {"logit_scale_init_value": 1.0},
                      {place + "dropout": 0.3}]
        if name == "clip-plain":
            evaluated += old_objects(field, fields)
    if is_clip and not is_pair:
        (misfit if name.endswith("projected") else evaluated).append({"projection_dim": 13})
    if is_pair:
        refused.append({place + "model_type": "bert"})
        other = "vision_config" if tower == "text" else "text_config"
        evaluated.append({f"{other}.hidden_act": "silu"})
    kept = {"model_type", "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size",
            "num_attention_heads", "max_position_embeddings", "image_size", "patch_size",
            "projection_dim", "eos_token_id", "text_config", "vision_config", "num_channels",
            "projection_size"}
    evaluated += [{prefix + key: DELETED} for own, prefix in ((config, ""), (fields, place))
                  for key in own if key not in kept]
    unique = {repr(sorted(change.items())): change for change in evaluated}
    # The architecture says whether there is a projection.
    if is_clip and ("classifier" in name or name.endswith("projected")):
        del unique[repr([("architectures", DELETED)])]
        misfit.append({"architectures": DELETED})
    if "classifier" in name:
        misfit.remove({"projection_dim": 13})
    return refused, misfit, list(unique.values())


def old_objects(field: str, fields: dict) -> list:
    """An object of old files, whose fields count; those that it lacks have the family's values."""
    own = {key: value for key, value in fields.items() if key != "layer_norm_eps"}
    return [{f"{field}_dict": fields}, {f"{field}_dict": own}, {f"{field}_dict": None},
            {f"{field}_dict": {**fields, "hidden_act": "relu"}}]


def write_mutations(name: str, folder: Path, kind: type, tower: str, expected: dict) -> None:
    # One folder of mutations has one tower.
    place = folder
    if towers_of(name)[0] != tower:
        place = folder / tower
        place.mkdir()
        for path in [*folder.glob("*model*"), folder / "config.json"]:
            os.symlink(Path("..") / path.name, place / path.name)
    inputs = expected["inputs"]

    def compute(model: torch.nn.Module) -> torch.Tensor:
        states, pooled = pooled_of(model.eval(), tower, inputs)
        return states if pooled is None else pooled

    config = json.loads((folder / "config.json").read_text())
    pretrained_mutations.write(name, place, kind, expected["pooled"], compute,
                               changes_of(name, config, tower))


def write_case(name: str, folder: Path) -> None:
    kind = cases()[name][0]
    model = make(name)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for tower in towers_of(name):
        model = make(name)
        expected = expected_of(name, tower, model, folder, tensors)
        torch.save(expected, folder / f"{tower}.pt")
        write_mutations(name, folder, kind, tower, expected)


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in cases():
        write_case(name, folder / name)
    (folder / "cases.txt").write_text("".join(
        f"{name}\t{' '.join(towers_of(name))}\n" for name in cases()))


def saved_class(folder: Path) -> type:
    config = json.loads((folder / "config.json").read_text())
    return getattr(hf, config["architectures"][0])


def check(folder: Path) -> None:
    failed = False
    for name in cases():
        for tower in towers_of(name):
            place = folder / name / f"saved-{tower}"
            model, info = saved_class(place).from_pretrained(
                place, attn_implementation="eager", dtype=torch.float32, output_loading_info=True)
            expected = torch.load(folder / name / f"{tower}.pt")
            with torch.no_grad():
                states, pooled = pooled_of(model.eval(), tower, expected["inputs"])
            scores = states if pooled is None else pooled
            difference = (scores - expected["pooled"]).abs().max() / expected["pooled"].abs().max()
            if info["missing_keys"] or info["unexpected_keys"] or not difference <= 1e-6:
                print(f"{name}, {tower}: vectors differ by {difference}; {info}", file=sys.stderr)
                failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main(__doc__, {"write": write, "check": check})
