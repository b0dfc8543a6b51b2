# SPDX-License-Identifier: BSD-3-Clause
"""Compares generate with Python's transformers, on small encoder-decoders that it makes.

    check_encoder_decoders.py --generate PROGRAM --serve PROGRAM --text FILE --out DIR

DIR is emptied. The models are a T5, a BART and a Marian with random weights; the first two have a
tokenizer that is trained on the text. Exits with 77 where Python has no transformers. An adapter is
compared where it has peft.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Dict, List, Optional

from check_published import (  # which looks for transformers
    PROMPTS,
    expect,
    make_tokenizer,
    moved,
    peft,
    run,
    tokenizers,
    torch,
    transformers,
)

SOURCE = [9, 80, 41, 41, 3, 77]
ENDS = {"bos_token_id": 0, "eos_token_id": 1}
COUNT = 20


def make_models(out: Path, tokenizer) -> Dict[str, Path]:
    """Weights so large that greedy answers vary."""
    t5 = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=32, d_kv=12, d_ff=48, num_heads=3, num_layers=3,
        num_decoder_layers=2, feed_forward_proj="gated-gelu", eos_token_id=1, pad_token_id=2,
        decoder_start_token_id=2, initializer_factor=3.0,
    )  # fmt: skip
    sizes = dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                 decoder_attention_heads=2, encoder_ffn_dim=48, decoder_ffn_dim=40, init_std=0.3,
                 pad_token_id=2, max_position_embeddings=60, **ENDS)  # fmt: skip
    bart = transformers.BartConfig(vocab_size=len(tokenizer), decoder_start_token_id=1, **sizes)
    marian = transformers.MarianConfig(
        vocab_size=90, decoder_vocab_size=70, share_encoder_decoder_embeddings=False,
        decoder_start_token_id=2, **sizes,
    )  # fmt: skip
    settings = {"bart": {"forced_bos_token_id": 0, "forced_eos_token_id": 1},
                "marian": {"forced_eos_token_id": 1, "bad_words_ids": [[2]]}}  # fmt: skip
    around = {"t5": "$A <end>", "bart": "<begin> $A <end>"}
    torch.manual_seed(moved(5))
    folders = {}
    for config in (t5, bart, marian):
        name = config.model_type
        folder = folders[name] = out / name
        transformers.AutoModelForSeq2SeqLM.from_config(config).save_pretrained(folder)
        if name in around:
            tokenizer.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
                single=around[name], special_tokens=[("<begin>", 0), ("<end>", 1)]
            )
            tokenizer.save_pretrained(folder)
        set_fields(folder, {}, **settings.get(name, {}))
    return folders


def set_fields(folder: Path, fields: dict, **more) -> dict:
    """Gives generation_config.json these fields too; returns what it had."""
    path = folder / "generation_config.json"
    saved = json.loads(path.read_text())
    path.write_text(json.dumps({**saved, **fields, **more}))
    return saved


def restore(folder: Path, saved: dict) -> None:
    (folder / "generation_config.json").write_text(json.dumps(saved))


def target(folder: Path, source: List[int], adapter: Optional[Path] = None, **options) -> List[int]:
    """The tokens that transformers generates, without the first one and the end."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    if adapter:
        model = peft.PeftModel.from_pretrained(model, adapter).eval()
    with torch.no_grad():
        tokens = torch.tensor([source])
        mask = torch.ones_like(tokens)
        whole = model.generate(input_ids=tokens, attention_mask=mask, **options)[0].tolist()
    end = model.generation_config.eos_token_id
    return whole[1:-1] if whole[-1] == end else whole[1:]


def numbers(tokens: List[int]) -> str:
    return " ".join(map(str, tokens))


def written(generate: Path, folder: Path, source: List[int], *more) -> str:
    given = ["--model", folder, "--tokens", numbers(source), *more]
    return run(generate, *given).stdout.decode()


def check_answers(generate: Path, folder: Path) -> None:
    """Greedy and by beams, with options of the command line."""
    for beams in (1, 3):
        for options in ({}, {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
                        {"min_new_tokens": 8}):  # fmt: skip
            given = [word for name, value in options.items()
                     for word in ("--" + name.replace("_", "-"), value)]  # fmt: skip
            search = ["--beams", beams] if beams > 1 else ["--greedy"]
            text = written(generate, folder, SOURCE, "--count", COUNT, *search, *given)
            expected = target(folder, SOURCE, max_new_tokens=COUNT, num_beams=beams, **options)
            expect(f"{folder.name}, {beams} beams, {options}", text, numbers(expected) + "\n")


def check_texts(generate: Path, folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for prompt in PROMPTS:
        tokens = target(folder, tokenizer(prompt).input_ids, max_new_tokens=COUNT)
        expected = tokenizer.decode(tokens, skip_special_tokens=True,
                                    clean_up_tokenization_spaces=False)  # fmt: skip
        done = run(generate, "--model", folder, "--prompt", prompt, "--count", COUNT)
        expect(f"{folder.name} of {prompt!r}", done.stdout.decode(), expected + "\n")


def check_settings(generate: Path, folder: Path) -> None:
    """Settings of generation_config.json, which transformers reads itself."""
    first = target(folder, SOURCE, max_new_tokens=COUNT)
    end = first[len(first) // 2]  # which greedy answers reach
    for fields in (
        {"max_length": 9},
        {"max_length": 9, "forced_bos_token_id": 7, "forced_eos_token_id": 1},
        {"max_length": 9, "forced_bos_token_id": 7, "forced_eos_token_id": [1], "num_beams": 3},
        {"max_new_tokens": 1, "forced_bos_token_id": 7, "forced_eos_token_id": 8},
        {"eos_token_id": end},
        {"eos_token_id": end, "min_length": 14},
        {"eos_token_id": end, "min_length": 14, "num_beams": 2},
        {"eos_token_id": end, "min_length": 14, "min_new_tokens": 3},
        {"decoder_start_token_id": 3},
        {"decoder_start_token_id": None, "bos_token_id": 4},
        {"bad_words_ids": [[first[0]], [1]]},
        {"bad_words_ids": [[first[0]]], "num_beams": 3},
        {"do_sample": True, "top_k": 1},
        {"num_beams": 4, "length_penalty": 2.5, "eos_token_id": end},
        {"num_beams": 4, "length_penalty": -3.0, "early_stopping": True, "eos_token_id": end},
        {"num_beams": 2, "length_penalty": 0.3, "early_stopping": "never", "eos_token_id": end},
    ):
        given = {"max_new_tokens": COUNT, **fields}
        if "max_length" in fields:
            del given["max_new_tokens"]
        saved = set_fields(folder, given)
        done = run(generate, "--model", folder, "--tokens", numbers(SOURCE))
        expected = numbers(target(folder, SOURCE)) + "\n"
        expect(f"{folder.name} with {fields}", done.stdout.decode(), expected)
        if b"left out" in done.stderr:
            sys.exit(f"{fields} were left out: {done.stderr}")
        restore(folder, saved)


def check_command_line(generate: Path, folder: Path) -> None:
    """It overrides the settings."""
    first = target(folder, SOURCE, max_new_tokens=COUNT)
    end = {"eos_token_id": first[len(first) // 2]}
    saved = set_fields(folder, {"num_beams": 4, "length_penalty": -3.0, "early_stopping": True,
                                "max_length": 9, **end})  # fmt: skip
    options = {"max_new_tokens": COUNT, "length_penalty": 2.0, "early_stopping": "never"}
    given = ["--count", COUNT, "--length-penalty", 2, "--early-stopping", "never"]
    expected = numbers(target(folder, SOURCE, num_beams=3, **options)) + "\n"
    expect("three beams", written(generate, folder, SOURCE, "--beams", 3, *given), expected)
    expected = numbers(target(folder, SOURCE, **options)) + "\n"
    expect("the folder's beams", written(generate, folder, SOURCE, *given), expected)
    expected = numbers(target(folder, SOURCE, num_beams=1, max_new_tokens=COUNT)) + "\n"
    greedy = written(generate, folder, SOURCE, "--greedy", "--count", COUNT)
    expect("the most likely tokens", greedy, expected)
    restore(folder, saved)


def check_without_generation_config(generate: Path, folder: Path) -> None:
    """The tokens of config.json, as in folders of old."""
    path = folder / "generation_config.json"
    saved = json.loads(path.read_text())
    path.unlink()
    config_path = folder / "config.json"
    config = config_path.read_text()
    config_path.write_text(json.dumps({**json.loads(config), "decoder_start_token_id": 4}))
    expected = numbers(target(folder, SOURCE, max_new_tokens=COUNT)) + "\n"
    expect("by config.json", written(generate, folder, SOURCE, "--count", COUNT), expected)
    without = {name: value for name, value in json.loads(config).items()
               if name not in ("decoder_start_token_id", "bos_token_id")}  # fmt: skip
    config_path.write_text(json.dumps(without))
    done = run(generate, "--model", folder, "--tokens", "5 6", status=1)
    message = f"generate: {config_path} must have decoder_start_token_id\n"
    expect("a folder without a start", done.stderr.decode(), message)
    config_path.write_text(config)
    restore(folder, saved)


def check_context(generate: Path, bart: Path) -> None:
    saved = set_fields(bart, {"forced_eos_token_id": None})
    done = run(generate, "--model", bart, "--tokens", "5 6 7", "--greedy", "--count", 100,
               "--min-new-tokens", 100)  # fmt: skip
    expect("tokens of a full context", len(done.stdout.decode().split()), 60)
    if not done.stderr.endswith(b"; the model's context of 60 tokens is full\n"):
        sys.exit(f"the full context was not told: {done.stderr}")
    refused = run(generate, "--model", bart, "--tokens", numbers([5] * 61), status=1)
    message = b"generate: the prompt has 61 tokens, and the model's context 60\n"
    expect("a long prompt", refused.stderr, message)
    restore(bart, saved)


def check_adapter(generate: Path, folder: Path, out: Path) -> None:
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    options = {"r": 3, "target_modules": ["q", "v", "wo"], "task_type": "SEQ_2_SEQ_LM"}
    adapted = peft.get_peft_model(model, peft.LoraConfig(**options))
    torch.manual_seed(moved(6))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    adapter = out / "adapter"
    adapted.save_pretrained(adapter)
    plain = target(folder, SOURCE, max_new_tokens=COUNT)
    expected = target(folder, SOURCE, adapter, max_new_tokens=COUNT)
    if plain == expected:
        sys.exit("the adapter changes nothing")
    given = ["--adapter", adapter, "--count", COUNT]
    text = written(generate, folder, SOURCE, *given)
    expect("an adapter's answer", text, numbers(expected) + "\n")
    beams = target(folder, SOURCE, adapter, max_new_tokens=COUNT, num_beams=3)
    text = written(generate, folder, SOURCE, *given, "--beams", 3)
    expect("an adapter's beams", text, numbers(beams) + "\n")
    for weights in ("packed", "int8"):  # beside which it stays
        written(generate, folder, SOURCE, *given, "--weights", weights)


def check_refusals(options, folders: Dict[str, Path]) -> None:
    whisper = options.out / "whisper"
    config = transformers.WhisperConfig(
        vocab_size=90, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=6,
        max_source_positions=10, max_target_positions=40, pad_token_id=1, bos_token_id=0,
        eos_token_id=2, decoder_start_token_id=2, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    transformers.AutoModelForSpeechSeq2Seq.from_config(config).save_pretrained(whisper)
    prompts = options.out / "prompts.txt"
    prompts.write_text("The library\n")
    t5, marian = folders["t5"], folders["marian"]
    refusals = [
        (options.generate, ["--model", whisper, "--tokens", "5"],
         f"{whisper} makes text of speech, and a prompt is text"),
        (options.generate, ["--model", t5, "--raw"],
         "give a prompt: the model names no token that begins a text"),
        (options.generate, ["--model", marian, "--tokens", "5 90"],
         "tokens must be whole numbers from 0 to 89, not 90"),
        (options.generate, ["--model", marian, "--prompt", "Text"],
         f"{marian} has no tokenizer.json, which --prompt needs: give the prompt's token ids with "
         "--tokens"),
        (options.serve, ["--model", t5, "--prompts", prompts],
         f"{t5} is an encoder-decoder, whose texts generate writes, one at a time"),
    ]  # fmt: skip
    for program, arguments, message in refusals:
        done = run(program, *arguments, status=1)
        expect(f"refusal of {arguments}", done.stderr.decode(), f"{program.name}: {message}\n")
    saved = set_fields(t5, {"forced_eos_token_id": [1, 2]})
    done = run(options.generate, "--model", t5, "--tokens", "5", status=1)
    path = t5 / "generation_config.json"
    message = f"generate: {path}: forced_eos_token_id [1,2] must be one token\n"
    expect("two last tokens", done.stderr.decode(), message)
    restore(t5, {**saved, "encoder_repetition_penalty": 1.5, "bad_words_ids": [[5, 6]]})
    done = run(options.generate, "--model", t5, "--tokens", "5", "--count", 2)
    told = f"generate: {path} asks for encoder_repetition_penalty 1.5, bad_words_ids: left out\n"
    if not done.stderr.decode().startswith(told):
        sys.exit(f"it was not told what is left out: {done.stderr}")
    restore(t5, saved)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    for name in ("--generate", "--serve", "--text", "--out"):
        parser.add_argument(name, type=Path, required=True)
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    folders = make_models(options.out, make_tokenizer(options.text))
    for folder in folders.values():
        check_answers(options.generate, folder)
    check_settings(options.generate, folders["bart"])
    for name in ("t5", "bart"):
        check_texts(options.generate, folders[name])
    check_command_line(options.generate, folders["bart"])
    check_without_generation_config(options.generate, folders["t5"])
    check_context(options.generate, folders["bart"])
    if peft is not None:
        check_adapter(options.generate, folders["t5"], options.out)
    check_refusals(options, folders)
    print("generate does as transformers")


if __name__ == "__main__":
    main()
