#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Write small encoder-decoder models as transformers saves them, and what they compute.

    encoder_decoders.py write FOLDER
    encoder_decoders.py check FOLDER    what encoder_decoders_test.cpp saved in FOLDER/NAME/saved

FOLDER/cases.txt has a line for each model, as that of pretrained.py. FOLDER/NAME is a folder as
transformers saves it, besides expected.pt with these tensors:

    source [2, 14], or frames [2, mels, T]; target [2, 9]; scores [2, 9, V]
    batch.source [3, 14], batch.lengths [3], batch.target [3, 9], batch.scores: of padded sources
    loss: the mean of (scores * loss.factors)^2; gradient.NAME: by transformers' names
    rules [5]: the first token of a target, the token that is forced to be second, the one that is
        forced to be last, the end and the padding; -1 for none
    generated [2, 1 + 24]: what `generate` makes of the source, with its first token
    bfloat16.scores: of the model in bfloat16

FOLDER/NAME/mutations is what pretrained_mutations.py writes.
"""

import copy
import json
import sys
import zlib
from pathlib import Path

import torch
import transformers as hf

import pretrained_cases
import pretrained_mutations
from pretrained import check_saved, gradients, main, moved, randomize, save
from pretrained_changes import DELETED

SOURCE, TARGET, GENERATED = 14, 9, 24
LENGTHS = [14, 5, 9]
FIRST = 5  # the tokens below are padding, the begin and the end
T5 = dict(vocab_size=90, d_model=32, d_kv=12, d_ff=48, num_heads=3, num_layers=3,
          num_decoder_layers=2, relative_attention_num_buckets=8,
          relative_attention_max_distance=9, decoder_start_token_id=0)
BART = dict(vocab_size=90, d_model=32, encoder_layers=3, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=2, encoder_ffn_dim=48, decoder_ffn_dim=40, pad_token_id=1,
            bos_token_id=0, eos_token_id=2, decoder_start_token_id=2)
MARIAN = {**BART, "pad_token_id": 4, "decoder_start_token_id": 4, "forced_eos_token_id": 2}
WHISPER = {**BART, "num_mel_bins": 6, "max_source_positions": 10, "max_target_positions": 40,
           "suppress_tokens": None, "begin_suppress_tokens": None}
UNTIED = {"t5-gated", "umt5-plain"}  # whose files have a head, as those of the first T5 1.1
# Fields of config.json that are sizes, or of generation.
LEFT_OUT = {"vocab_size", "d_model", "d_kv", "d_ff", "num_heads", "num_layers", "num_decoder_layers",
            "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads",
            "encoder_ffn_dim", "decoder_ffn_dim", "decoder_start_token_id", "forced_bos_token_id",
            "forced_eos_token_id", "num_mel_bins", "max_source_positions", "max_target_positions",
            "max_position_embeddings", "decoder_vocab_size", "suppress_tokens",
            "begin_suppress_tokens", "num_hidden_layers"}


def cases() -> dict:
    """Name -> config."""
    short = {"num_decoder_layers": 1, "relative_attention_num_buckets": 6,
             "relative_attention_max_distance": 30, "layer_norm_epsilon": 1e-3, "d_kv": 8}
    return {
        "t5-plain": hf.T5Config(**T5),
        "t5-gated": hf.T5Config(**{**T5, **short}, feed_forward_proj="gated-gelu",
                                tie_word_embeddings=False),
        "mt5-plain": hf.MT5Config(**T5),
        "mt5-relu": hf.MT5Config(**{**T5, **short}, feed_forward_proj="relu"),
        "umt5-plain": hf.UMT5Config(**T5, tie_word_embeddings=False),
        "umt5-scaled": hf.UMT5Config(**{**T5, **short}, feed_forward_proj="gated-silu"),
        "bart-plain": hf.BartConfig(**BART, max_position_embeddings=40, forced_bos_token_id=0),
        "bart-scaled": hf.BartConfig(**BART, max_position_embeddings=50, scale_embedding=True,
                                     activation_function="relu", forced_eos_token_id=None),
        "marian-shared": hf.MarianConfig(**MARIAN, max_position_embeddings=40, scale_embedding=True,
                                         activation_function="swish"),
        "marian-apart": hf.MarianConfig(**MARIAN, max_position_embeddings=50, decoder_vocab_size=70,
                                        share_encoder_decoder_embeddings=False),
        "whisper-plain": hf.WhisperConfig(**WHISPER),
        "whisper-relu": hf.WhisperConfig(**{**WHISPER, "max_source_positions": 7},
                                         activation_function="relu"),
    }


def exercised(config: hf.PreTrainedConfig) -> list:
    return [field for field in pretrained_cases.exercised(config) if field not in LEFT_OUT]


def make(name: str, config: hf.PreTrainedConfig) -> torch.nn.Module:
    torch.manual_seed(moved(zlib.crc32(name.encode())))
    auto = auto_class(name)
    model = auto.from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    randomize(model)
    with torch.no_grad():
        for buffer_name, buffer in model.named_buffers():
            if buffer_name == "final_logits_bias":
                buffer.copy_(torch.randn_like(buffer) * 0.3)
        for module in model.modules():  # tables of sinusoidal positions are in no file
            if hasattr(module, "create_weight"):
                module.weight.copy_(module.create_weight())
        if name in UNTIED:
            model.lm_head.weight = torch.nn.Parameter(0.3 * torch.randn_like(model.lm_head.weight))
    return model


def auto_class(name: str) -> type:
    return hf.AutoModelForSpeechSeq2Seq if name.startswith("whisper") else hf.AutoModelForSeq2SeqLM


def draw_target(model: torch.nn.Module, batch: int) -> torch.Tensor:
    size = getattr(model.config, "decoder_vocab_size", None) or model.config.vocab_size
    tokens = torch.randint(FIRST, size, (batch, TARGET))
    # An Embedding of torch may give its padding no gradient, which is the first token of some targets.
    if model.config.decoder_start_token_id != model.config.pad_token_id:
        tokens[:, 0] = model.config.decoder_start_token_id
    return tokens


def draw_source(model: torch.nn.Module, batch: int) -> torch.Tensor:
    config = model.config
    if config.model_type == "whisper":
        return torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions)
    return torch.randint(FIRST, config.vocab_size, (batch, SOURCE))


def compute(model: torch.nn.Module, source: torch.Tensor, target: torch.Tensor,
            mask: torch.Tensor = None) -> torch.Tensor:
    return model(source, decoder_input_ids=target, attention_mask=mask).logits


def padded_batch(model: torch.nn.Module) -> dict:
    lengths = torch.tensor(LENGTHS)
    source, target = draw_source(model, len(LENGTHS)), draw_target(model, len(LENGTHS))
    real = torch.arange(SOURCE) < lengths.unsqueeze(1)
    source[~real] = model.config.pad_token_id
    with torch.no_grad():
        return {"batch.source": source, "batch.lengths": lengths, "batch.target": target,
                "batch.scores": compute(model, source, target, real.long())}


def rules_of(model: torch.nn.Module) -> torch.Tensor:
    own = model.generation_config
    if model.config.model_type == "whisper":  # whose `generate` has many rules of its own
        return torch.tensor([own.decoder_start_token_id, -1, -1, -1, 0])
    values = [own.decoder_start_token_id, own.forced_bos_token_id, own.forced_eos_token_id,
              own.eos_token_id, own.pad_token_id]
    return torch.tensor([-1 if value is None else value for value in values])


def greedy(model: torch.nn.Module, source: torch.Tensor) -> tuple:
    """(tokens, how far the best token is ahead)."""
    if model.config.model_type == "whisper":
        tokens = torch.full((len(source), 1), model.config.decoder_start_token_id)
        ahead = []
        for _ in range(GENERATED):
            with torch.no_grad():
                scores = compute(model, source, tokens)[:, -1]
            best = scores.topk(2)
            ahead.append(best.values[:, 0] - best.values[:, 1])
            tokens = torch.cat([tokens, best.indices[:, :1]], 1)
        return tokens, torch.stack(ahead).min()
    output = model.generate(source, max_new_tokens=GENERATED, num_beams=1, do_sample=False,
                            output_logits=True, return_dict_in_generate=True)
    best = torch.stack(output.logits).topk(2).values
    tokens = torch.nn.functional.pad(output.sequences, (0, 1 + GENERATED - output.sequences.size(1)),
                                     value=model.generation_config.pad_token_id)
    return tokens, (best[..., 0] - best[..., 1]).min()


def clear_text(model: torch.nn.Module) -> tuple:
    """(source, text) that rounding cannot change; the most varied of some."""
    found = []
    for _ in range(20):
        source = draw_source(model, 2)
        tokens, ahead = greedy(model, source)
        if ahead > 1e-3:
            found.append((tokens.unique().numel(), source, tokens))
    if not found:
        sys.exit("no source has a clear text")
    return max(found, key=lambda each: each[0])[1:]


def changes_of(config: dict) -> tuple:
    """(refused, misfit, evaluated) changes of config.json."""
    kind = config["model_type"]
    is_t5 = kind.endswith("t5")
    activation = "feed_forward_proj" if is_t5 else "activation_function"
    refused = [{"frobnicate": 3}, {"is_encoder_decoder": False}, {"is_decoder": True},
               {"model_type": "no such model"},
               {"d_model": -1}, {"quantization_config": {"quant_method": "gptq", "bits": 4}}]
    if is_t5:
        refused += [{"dense_act_fn": "no such"}, {"relative_attention_num_buckets": 7},
                    {"relative_attention_max_distance": 2}, {"num_layers": 0},
                    {activation: "gated-gelu-new"}]
        misfit = [{key: config[key] + 2} for key in (
            "vocab_size", "d_model", "d_kv", "d_ff", "num_heads", "num_layers",
            "num_decoder_layers", "relative_attention_num_buckets")]
        evaluated = [{"relative_attention_max_distance": 6}, {"layer_norm_epsilon": 0.1},
                     {"dense_act_fn": "silu"}, {"dropout_rate": 0.5}, {"initializer_factor": 3.0},
                     {"tie_word_embeddings": not config["tie_word_embeddings"]},
                     {"scale_decoder_outputs": True}, {"scale_decoder_outputs": False},
                     {activation: "gated-gelu", "dense_act_fn": DELETED, "is_gated_act": DELETED},
                     {"is_gated_act": not config["is_gated_act"]},
                     {"classifier_dropout": 0.3}, {"decoder_start_token_id": 3}]
    else:
        refused += [{activation: "no such"}, {"encoder_layerdrop": 0.5}, {"decoder_layerdrop": 0.5},
                    {"normalize_before": True}, {"num_hidden_layers": 1}, {"decoder_layers": 0}]
        if kind != "whisper":
            refused.append({"tie_word_embeddings": False})
        misfit = [{key: config[key] + 2} for key in (
            "d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim",
            "vocab_size")]
        misfit.append({"encoder_attention_heads": 5})
        misfit += {"bart": [{"max_position_embeddings": 30}],
                   "whisper": [{"max_source_positions": 11}, {"max_target_positions": 30},
                               {"num_mel_bins": 7}],
                   "marian": [{"share_encoder_decoder_embeddings":
                               not config.get("share_encoder_decoder_embeddings")}]}[kind]
        evaluated = [{activation: "silu" if config[activation] == "relu" else "relu"},
                     {"encoder_attention_heads": 8},
                     {"decoder_attention_heads": 8}, {"dropout": 0.4}, {"attention_dropout": 0.4},
                     {"activation_dropout": 0.4}, {"init_std": 3.0}, {"use_cache": False},
                     {"scale_embedding": not config["scale_embedding"]}]
        if kind == "marian":
            evaluated += [{"max_position_embeddings": 77}]
    sizes = {"pad_token_id", "vocab_size", "d_model", "d_kv", "d_ff", "num_heads", "num_layers", "model_type",
             "num_decoder_layers", "relative_attention_num_buckets"}
    evaluated += [{key: DELETED} for key in config if key not in sizes]
    return refused, misfit, evaluated


def write_case(name: str, config: hf.PreTrainedConfig, folder: Path) -> None:
    model = make(name, config)
    tensors = save(name, model, folder)
    expected = {} if name.startswith("whisper") else padded_batch(model)
    expected["rules"] = rules_of(model)
    expected["source"], expected["generated"] = clear_text(model)
    source = expected["source"]
    target = expected["target"] = draw_target(model, 2)
    scores = compute(model, source, target)
    expected["scores"] = scores.detach()
    expected["loss.factors"] = torch.randn_like(scores)
    loss = (scores * expected["loss.factors"]).square().mean()
    expected["loss"] = loss.detach()
    expected.update(gradients(model, loss, tensors))
    rounded = auto_class(name).from_pretrained(folder, dtype=torch.bfloat16,
                                               attn_implementation="eager")
    with torch.no_grad():
        given = source.bfloat16() if source.is_floating_point() else source
        expected["bfloat16.scores"] = compute(rounded, given, target).float()
    torch.save(expected, folder / "expected.pt")
    pretrained_mutations.write(name, folder, auto_class(name), expected["scores"],
                               lambda changed: compute(changed, source, target),
                               changes_of(json.loads((folder / "config.json").read_text())))


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, config in cases().items():
        write_case(name, config, folder / name)
    (folder / "cases.txt").write_text("".join(
        f"{name}\tencoder_decoder\t{', '.join(exercised(config))}\n"
        for name, config in cases().items()))


def check(folder: Path) -> None:
    check_saved(folder, {name: auto_class(name) for name in cases()},
                lambda model, expected: compute(model, expected["source"], expected["target"]))


if __name__ == "__main__":
    main(__doc__, {"write": write, "check": check})
