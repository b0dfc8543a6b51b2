# SPDX-License-Identifier: BSD-3-Clause
"""Compares generate, serve and finetune with Python's transformers, on small models that it makes.

    check_published.py --generate PROGRAM --serve PROGRAM --finetune PROGRAM --text FILE --out DIR

DIR is emptied. The models are a Llama, a GPT-2 and a Phi-3 with random weights, and a tokenizer that
is trained on the text. The texts of Phi-3 outgrow the length that its frequencies are trained for.
Exits with 77 where Python has no transformers. Adapters are compared where it has peft.
"""

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional

os.environ["HF_HUB_OFFLINE"] = "1"  # everything is made here

try:
    import tokenizers
    import torch
    import transformers
except ImportError as error:
    print(f"check_published.py: cannot import {error.name}")
    sys.exit(77)

try:
    import peft
except ImportError:
    peft = None

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from seeds import moved  # noqa: E402

PROMPTS = ["The library", "const at::Tensor& x = é€😀", "  two  spaces\n", ""]
# The loss is a mean of some thousand losses, of float32 scores that are rounded in another order, as
# loss.csv writes them: with 6 digits.
LOSS_TOLERANCE = 1e-5
INT8_TOLERANCE = 0.01
# Fields of generation_config.json that generate and serve leave out, with a value that changes the
# text and one that does not; and those that make no difference to them.
LEFT_OUT = {
    "encoder_repetition_penalty": (1.5, 1),
    "encoder_no_repeat_ngram_size": (3, 0),
    "min_length": (3, 0),
    "exponential_decay_length_penalty": ([1, 1.5], None),
    "bad_words_ids": ([[5], [6, 7]], []),
    "force_words_ids": ([[5]], []),
    "constraints": ([5], []),
    "sequence_bias": ([[[5], 2.0]], []),
    "suppress_tokens": ([5], []),
    "begin_suppress_tokens": ([5], []),
    "forced_bos_token_id": (5, None),
    "forced_eos_token_id": (5, None),
    "num_beams": (2, 1),
    "num_beam_groups": (2, 1),
    "penalty_alpha": (0.5, 0.0),
    "guidance_scale": (1.5, 1.0),
    "dola_layers": ("low", None),
    "watermarking_config": ({"bias": 2.5}, None),
    "token_healing": (True, False),
    "stop_strings": ("x", None),
    "max_time": (0.5, None),
}
SAMPLING = {"typical_p": (0.5, 1.0), "epsilon_cutoff": (0.5, 0.0), "eta_cutoff": (0.5, 0.0),
            "top_h": (0.5, None)}  # fmt: skip
# They follow these.
FOLLOWED = {"temperature": 0.6, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.5,
            "no_repeat_ngram_size": 3, "min_new_tokens": 3, "length_penalty": 2.0,
            "early_stopping": True}  # fmt: skip
NOT_TOLD = """
    _from_model_config assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight
    assistant_lookbehind bos_token_id cache_config cache_implementation compile_config
    continuous_batching_config decoder_start_token_id disable_compile diversity_penalty do_sample
    eos_token_id is_assistant low_memory max_cache_len max_length
    max_matching_ngram_size max_new_tokens num_assistant_tokens num_assistant_tokens_schedule
    num_return_sequences output_attentions output_hidden_states output_logits output_scores
    pad_token_id prefill_chunk_size prompt_lookup_num_tokens remove_invalid_values
    renormalize_logits return_dict_in_generate speculation_type target_lookbehind
    transformers_version use_cache use_mtp
""".split()


def run(program: Path, *arguments, status: int = 0) -> subprocess.CompletedProcess:
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != status:
        text = (done.stdout + done.stderr).decode(errors="replace")
        sys.exit(f"{command}: exit status {done.returncode}, expected {status}\n{text}")
    return done


def expect(what: str, actual, expected) -> None:
    if actual != expected:
        sys.exit(f"{what}:\n{actual!r}\nmust be\n{expected!r}")


def expect_close(what: str, actual: float, expected: float, tolerance: float) -> None:
    if not abs(actual - expected) <= tolerance * abs(expected):
        sys.exit(f"{what}: {actual} must be {expected} to {tolerance} of it")


def make_tokenizer(text: Path) -> transformers.PreTrainedTokenizerFast:
    """Byte-pair encoding of bytes, in which most characters beyond ASCII are several tokens."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<begin>", "<end>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train([str(text)], trainer)
    model.post_processor = tokenizers.processors.TemplateProcessing(
        single="<begin> $A", special_tokens=[("<begin>", 0)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, bos_token="<begin>", eos_token="<end>"
    )


def make_models(out: Path, tokenizer) -> Dict[str, Path]:
    """Weights so large that greedy answers vary."""
    sizes = {"vocab_size": len(tokenizer), "bos_token_id": 0, "initializer_range": 0.15}
    llama = transformers.LlamaConfig(
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=200,
        eos_token_id=[1, 399],
        **sizes,
    )
    gpt2 = transformers.GPT2Config(
        n_embd=48, n_layer=2, n_head=4, n_positions=64, eos_token_id=1, **sizes
    )
    phi3 = transformers.Phi3Config(
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=200,
        original_max_position_embeddings=24,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0, 1.1, 1.25, 1.5, 1.75, 2.0],
            "long_factor": [1.0, 2.5, 6.0, 11.0, 13.0, 17.0],
        },
        eos_token_id=1,
        pad_token_id=0,
        **sizes,
    )
    torch.manual_seed(moved(5))
    folders = {}
    for config in (llama, gpt2, phi3):
        folder = out / config.model_type
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        folders[config.model_type] = folder
    return folders


def load(folder: Path, adapter: Optional[Path] = None) -> torch.nn.Module:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return (peft.PeftModel.from_pretrained(model, adapter) if adapter else model).eval()


def answer(
    folder: Path, tokens: List[int], count: int, adapter: Optional[Path] = None, **options
) -> List[int]:
    """What transformers generates, with the prompt and without the end of the text."""
    model = load(folder, adapter)
    prompt = torch.tensor([tokens])
    with torch.no_grad():
        whole = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            **options,
        )[0].tolist()
    ends = options.get("eos_token_id", model.generation_config.eos_token_id)
    ends = ends if isinstance(ends, list) else [ends]
    return whole[:-1] if whole[-1] in ends else whole


def check_answers(
    generate: Path, folder: Path, tokenizer, adapter: Optional[Path] = None
) -> None:
    more = ["--adapter", adapter] if adapter else []
    context = transformers.AutoConfig.from_pretrained(folder).max_position_embeddings
    for prompt in PROMPTS:
        tokens = tokenizer(prompt).input_ids
        count = min(40, context - len(tokens))
        expected = tokenizer.decode(
            answer(folder, tokens, count, adapter),
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        options = ["--prompt", prompt, *more] if prompt else more
        done = run(generate, "--model", folder, *options, "--greedy", "--count", count)
        expect(f"{folder.name} of {prompt!r}", done.stdout.decode(), expected + "\n")

    options = ["--tokens", "5 6 7", *more]
    numbers = run(generate, "--model", folder, *options, "--greedy", "--count", 20)
    expected = " ".join(map(str, answer(folder, [5, 6, 7], 20, adapter)))
    expect(f"{folder.name} of numbers", numbers.stdout.decode(), expected + "\n")


def check_beams(generate: Path, folder: Path) -> None:
    """The likeliest text of beams, with an end that some of them reach."""
    end = answer(folder, [5, 6, 7], 30, eos_token_id=-1, num_beams=3)[12]
    path = folder / "generation_config.json"
    saved = path.read_text()
    path.write_text(json.dumps({**json.loads(saved), "eos_token_id": end}))
    for options in ({}, {"length_penalty": 3.0}, {"length_penalty": -2.0},
                    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2}):  # fmt: skip
        given = [word for name, value in options.items()
                 for word in ("--" + name.replace("_", "-"), value)]  # fmt: skip
        done = run(generate, "--model", folder, "--tokens", "5 6 7", "--beams", 3, "--count", 30,
                   *given)  # fmt: skip
        expected = " ".join(map(str, answer(folder, [5, 6, 7], 30, num_beams=3, **options)))
        expect(f"beams with {options}", done.stdout.decode(), expected + "\n")
    for fields in ({"num_beams": 4}, {"num_beams": 3, "length_penalty": 3.0},
                   {"num_beams": 3, "length_penalty": -2.0, "early_stopping": True},
                   {"num_beams": 2, "early_stopping": "never"},
                   {"num_beams": 2, "bad_words_ids": [[end], [20]]}):  # fmt: skip
        settings = {**json.loads(saved), "eos_token_id": end, "max_new_tokens": 30, **fields}
        path.write_text(json.dumps(settings))
        done = run(generate, "--model", folder, "--tokens", "5 6 7")
        expected = " ".join(map(str, answer(folder, [5, 6, 7], 30)))
        expect(f"beams by {fields}", done.stdout.decode(), expected + "\n")
    path.write_text(json.dumps({**json.loads(saved), "num_beams": 3, "do_sample": True}))
    done = run(generate, "--model", folder, "--tokens", "5 6 7", "--count", 2)
    if not done.stderr.decode().startswith(f"generate: {path} asks for num_beams 3: left out\n"):
        sys.exit(f"it was not told that beams are left out: {done.stderr}")
    path.write_text(saved)


def check_ends(generate: Path, folder: Path) -> None:
    """A token of the answer as the end of the text, by both files and as a number and a list."""
    whole = answer(folder, [5, 6, 7], 30, eos_token_id=-1)
    end = whole[12]
    before = whole[: 3 + whole[3:].index(end)]
    text = " ".join(map(str, before)) + "\n"
    for name, value in (("generation_config", end), ("config", [end, 2])):
        path = folder / f"{name}.json"
        saved = path.read_text()
        path.write_text(json.dumps({**json.loads(saved), "eos_token_id": value}))
        if name == "config":
            (folder / "generation_config.json").unlink()
        done = run(generate, "--model", folder, "--tokens", "5 6 7", "--greedy")
        expect(f"the end by {name}", done.stdout.decode(), text)
        if not re.search(rb"^\d+ tokens? in .* tokens/s; the text has ended\n$", done.stderr):
            sys.exit(f"the end was not told: {done.stderr}")
        path.write_text(saved)


def check_serve(options, folder: Path, tokenizer) -> None:
    """Answers beside longer and shorter ones, and beside prompts that cannot be answered."""
    context = transformers.AutoConfig.from_pretrained(folder).max_position_embeddings
    extended = options.out / f"{folder.name}_extended"
    shutil.copytree(folder, extended)
    more = transformers.AutoTokenizer.from_pretrained(folder)
    more.add_tokens(["<beyond>"])  # the vocabulary's tokens are below 400
    more.save_pretrained(extended)
    prompts = ["The library", "const at::Tensor& x", "a <beyond> b", "word " * context, "The"]
    prompts += ["namespace heed {", "The library reads a file of weights and then it"]
    file = options.out / "prompts.txt"
    file.write_bytes(b"\xff\xfe bad\n" + "\n".join(prompts).encode() + b"\n")
    answers = []
    for number, prompt in enumerate(prompts, 2):
        tokens = tokenizer(prompt).input_ids
        if number in (4, 5):
            continue
        text = tokenizer.decode(answer(folder, tokens, 40), skip_special_tokens=True,
                                clean_up_tokenization_spaces=False)  # fmt: skip
        answers.append(f"==> {number} <==\n{text}\n")
    arguments = ["--prompts", file, "--greedy", "--tokens", 40]
    for at_once, pages in ((16, 0), (1, 0), (3, 8)):
        given = ["--at-once", at_once, "--pages", pages]
        done = run(options.serve, "--model", extended, *arguments, *given, status=1)
        expect(f"answers of {folder.name}, {at_once}", done.stdout.decode(), "\n".join(answers))
        length = len(tokenizer(prompts[3]).input_ids)
        for line in ("1: the text is not UTF-8",
                     "4: the prompt has token 400, and the model's last is 399",
                     f"5: the prompt has {length} tokens, and the model's context {context}"):
            if f"serve: prompt {line}".encode() not in done.stderr:
                sys.exit(f"prompt {line} was not told: {done.stderr}")


def check_left_out(options, llama: Path) -> None:
    known = {*LEFT_OUT, *SAMPLING, *FOLLOWED, *NOT_TOLD}
    new = set(transformers.GenerationConfig().to_dict()) - known
    if new:
        sys.exit(f"do these fields of generation_config.json change the text? {sorted(new)}")
    folder = options.out / "fields"
    shutil.copytree(llama, folder)
    path = folder / "generation_config.json"
    prompts = options.out / "one_prompt.txt"
    prompts.write_text("The library\n")
    generate = [options.generate, "--tokens", "5 6 7", "--count", 2]
    serve = [options.serve, "--prompts", prompts, "--tokens", 2]

    def told(fields: dict, *arguments, program=generate) -> str:
        path.write_text(json.dumps(fields))
        done = run(*program, "--model", folder, *arguments)
        lines = done.stderr.decode().splitlines()[:-1]
        start, end = f"{program[0].name}: {path} asks for ", ": left out"
        if not lines:
            return ""
        if len(lines) > 1 or not lines[0].startswith(start) or not lines[0].endswith(end):
            sys.exit(f"expected {start}...{end}, not {lines}")
        return lines[0][len(start) : -len(end)]

    def named(fields: dict) -> list:
        return [f"{name} {value}" if type(value) in (int, float) else name
                for name, (value, _) in fields.items()]  # fmt: skip

    every = {**LEFT_OUT, **SAMPLING}
    changing = {**FOLLOWED, **{name: value for name, (value, _) in every.items()}}
    neutral = {**FOLLOWED, **{name: value for name, (_, value) in every.items()}}
    for program in (generate, serve):
        found = told({**changing, "do_sample": True}, program=program)
        expect("what is left out", sorted(found.split(", ")), sorted(named(every)))
    for fields, arguments in (({"do_sample": True}, ["--greedy"]), ({"do_sample": False}, []),
                              ({}, [])):  # fmt: skip
        found = told({**changing, **fields}, *arguments)
        without = LEFT_OUT if arguments else {name: value for name, value in LEFT_OUT.items()
                                              if name != "num_beams"}  # fmt: skip
        expect("what is left out of greedy", sorted(found.split(", ")), sorted(named(without)))
    expect("of neutral values", told({**neutral, "do_sample": True}), "")
    others = {name: 3 for name in NOT_TOLD if name != "do_sample"}
    expect("of what makes no difference", told({**others, "do_sample": True}), "")


def check_settings(options, llama: Path, tokenizer) -> None:
    """Settings of generation_config.json and of the command line, beside transformers' own."""
    folder = options.out / "settings"
    shutil.copytree(llama, folder)
    path = folder / "generation_config.json"
    saved = json.loads(path.read_text())
    end = answer(llama, [5, 6, 7], 30, eos_token_id=-1)[8]
    for fields in (
        {"repetition_penalty": 1.4},
        {"no_repeat_ngram_size": 2},
        {"eos_token_id": end},
        {"eos_token_id": [end, 2], "min_new_tokens": 20},
        {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "eos_token_id": end,
         "min_new_tokens": 15},
    ):  # fmt: skip
        expected = " ".join(map(str, answer(llama, [5, 6, 7], 30, **fields))) + "\n"
        path.write_text(json.dumps({**saved, **fields, "max_new_tokens": 30}))
        done = run(options.generate, "--model", folder, "--tokens", "5 6 7")
        expect(f"the answer with {fields}", done.stdout.decode(), expected)
        ends = {"eos_token_id": fields.get("eos_token_id", saved["eos_token_id"])}
        path.write_text(json.dumps({**saved, **ends, "repetition_penalty": 3.5}))
        given = {"repetition_penalty": 1.0, **fields}
        arguments = [text for name, value in given.items() if name not in ends
                     for text in (f"--{name.replace('_', '-')}", value)]  # fmt: skip
        done = run(options.generate, "--model", folder, "--tokens", "5 6 7", "--count", 30, *arguments)
        expect(f"the answer with {arguments}", done.stdout.decode(), expected)

    greedy = " ".join(map(str, answer(llama, [5, 6, 7], 12))) + "\n"
    path.write_text(json.dumps({**saved, "do_sample": True, "top_k": 1, "max_new_tokens": 12}))
    done = run(options.generate, "--model", folder, "--tokens", "5 6 7")
    expect("the answer with top_k 1", done.stdout.decode(), greedy)

    penalized = {"repetition_penalty": 1.3, "max_new_tokens": 25}
    path.write_text(json.dumps({**saved, **penalized}))
    file = options.out / "settings_prompts.txt"
    file.write_text("The library\nnamespace heed {\n")
    done = run(options.serve, "--model", folder, "--prompts", file)
    answers = []
    for number, prompt in enumerate(file.read_text().splitlines(), 1):
        whole = answer(llama, tokenizer(prompt).input_ids, 25, repetition_penalty=1.3)
        text = tokenizer.decode(whole, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        answers.append(f"==> {number} <==\n{text}\n")
    expect("penalized answers of serve", done.stdout.decode(), "\n".join(answers))

    path.write_text(json.dumps({**saved, "top_p": 1.5}))
    refused = run(options.generate, "--model", folder, "--tokens", "5 6 7", status=1)
    message = f"generate: {path}: top_p 1.5 must be from 0 to 1\n"
    expect("a wrong setting", refused.stderr.decode(), message)


def check_texts(options, llama: Path, tokenizer) -> None:
    """Where texts begin and end."""
    prompt = "The library"
    arguments = ["--model", llama, "--greedy", "--count", 40]

    def written(text: str, *more) -> str:
        return run(options.generate, *arguments, "--prompt", text, *more).stdout.decode()

    def expected(tokens: List[int]) -> str:
        whole = answer(llama, tokens, 40)
        return tokenizer.decode(whole, skip_special_tokens=True,
                                clean_up_tokenization_spaces=False)  # fmt: skip

    text = expected(tokenizer(prompt).input_ids)
    expect("a text with the start", written("<begin>" + prompt), text + "\n")
    raw = expected(tokenizer(prompt, add_special_tokens=False).input_ids)
    expect("a raw text", written(prompt, "--raw"), raw + "\n")
    made = text[len(prompt) :]
    parts = (made[i : i + 4] for i in range(len(made) // 2, len(made)))
    stop = next(part for part in parts if "\0" not in part)  # which no argument can hold
    until = prompt + made[: made.find(stop)] + "\n"
    for stops in ([f"--stop={stop}"], ["--stop=never ever", f"--stop={stop}"]):
        expect(f"a text until {stop!r}", written(prompt, *stops), until)
    done = run(options.generate, *arguments, "--prompt", prompt, f"--stop={stop}")
    if not done.stderr.endswith(b" tokens/s; the text has reached a stop\n"):
        sys.exit(f"the stop was not told: {done.stderr}")
    file = options.out / "stopped_prompt.txt"
    file.write_text(prompt + "\n")
    served = run(options.serve, "--model", llama, "--prompts", file, "--greedy", "--tokens", 40,
                 f"--stop={stop}")  # fmt: skip
    expect("the answer of serve", served.stdout.decode(), f"==> 1 <==\n{until}")


def check_context(generate: Path, gpt2: Path) -> None:
    done = run(generate, "--model", gpt2, "--tokens", "5 6 7", "--greedy", "--count", 100)
    tokens = done.stdout.decode().split()
    expect("tokens of a full context", len(tokens), 65)  # the last is not read
    if not done.stderr.endswith(b"; the model's context of 64 tokens is full\n"):
        sys.exit(f"the full context was not told: {done.stderr}")
    long = " ".join(["5"] * 65)
    refused = run(generate, "--model", gpt2, "--tokens", long, status=1)
    expect(
        "a long prompt",
        refused.stderr,
        b"generate: the prompt has 65 tokens, and the model's context 64\n",
    )


def check_dtypes(generate: Path, folder: Path, out: Path) -> None:
    """A file of bfloat16 gives the same as one of float32 whose numbers are rounded."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.to(torch.bfloat16).save_pretrained(out / "bfloat16")
    model.to(torch.float32).save_pretrained(out / "rounded")
    options = ["--tokens", "5 6 7", "--greedy", "--count", 20]

    def by(name: str, dtype: str) -> bytes:
        return run(generate, "--model", out / name, *options, "--dtype", dtype).stdout

    for dtype in ("bfloat16", "float32"):
        expect(f"the answer in {dtype}", by("rounded", dtype), by("bfloat16", dtype))
    expect("the answer in the file's bfloat16", by("bfloat16", "auto"), by("bfloat16", "bfloat16"))
    expect("the answer in the file's float32", by("rounded", "auto"), by("rounded", "float32"))


def held_out_losses(out: Path) -> List[float]:
    rows = csv.DictReader((out / "loss.csv").open())
    return [float(row["held_out_loss"]) for row in rows if row["held_out_loss"]]


def held_out_loss(
    folder: Path, tokenizer, text: Path, context: int, adapter: Optional[Path] = None
) -> float:
    """Of 128 contexts, which are evenly spread over the last tenth of the text."""
    content = text.read_bytes()
    part = content[len(content) - len(content) // 10 :].decode()
    tokens = torch.tensor(tokenizer(part).input_ids)
    every = (len(tokens) - 1) // context
    count = min(128, every)
    starts = [i * every // count * context for i in range(count)]
    windows = torch.stack([tokens[start : start + context + 1] for start in starts])
    model = load(folder, adapter)
    with torch.no_grad():
        scores = model(windows[:, :-1]).logits
    return torch.nn.functional.cross_entropy(
        scores.flatten(0, 1).double(), windows[:, 1:].flatten()
    ).item()


def check_finetune(options, folder: Path, tokenizer) -> None:
    base = options.out / f"{folder.name}_tuned"
    arguments = ["--model", folder, "--text", options.text, "--context", 32, "--steps", 60]
    arguments += ["--learning-rate", 0.01, "--warm-up", 5, "--accumulate", 2]
    arguments += ["--evaluate-every", 20]
    whole = run(options.finetune, "--out", base, *arguments)
    losses = held_out_losses(base)
    expect("evaluations", len(losses), 4)
    # Untrained, it is ln(400) = 6 and more; how often each token comes gives about 5.
    if not losses[-1] < losses[0] - 1.5:
        sys.exit(f"{folder.name} has not learned: {losses}")
    for name, loss in ((folder, losses[0]), (base, losses[-1])):
        by_python = held_out_loss(name, tokenizer, options.text, 32)
        expect_close(f"the loss of {name}", loss, by_python, LOSS_TOLERANCE)
    told = f"held out: loss {losses[0]:.3f} before, {losses[-1]:.3f} after; perplexity "
    if told not in whole.stdout.decode():
        sys.exit(f"the losses were not told: {whole.stdout}")
    check_answers(options.generate, base, transformers.AutoTokenizer.from_pretrained(base))

    broken = options.out / f"{folder.name}_broken"
    stopped = run(options.finetune, "--out", broken, *arguments, "--stop-after", 25)
    if f"go on with: finetune --out {broken} --resume\n" not in stopped.stdout.decode():
        sys.exit(f"it was not told how to go on: {stopped.stdout}")
    run(options.finetune, "--out", broken, "--resume", "--checkpointing")
    for name in ("model.safetensors", "loss.csv"):
        expect(f"{name} of a resumed run", (broken / name).read_bytes(), (base / name).read_bytes())

    low = options.out / f"{folder.name}_bfloat16"
    run(options.finetune, "--out", low, *arguments, "--dtype", "bfloat16")
    expect_close("the loss with bfloat16", held_out_losses(low)[-1], losses[-1], 0.02)  # 8 bits


def check_lora(options, folder: Path, tokenizer) -> None:
    """Adapters beside weights as they are and packed ones."""
    arguments = ["--model", folder, "--text", options.text, "--context", 32, "--steps", 60]
    arguments += ["--learning-rate", 0.02, "--warm-up", 5, "--evaluate-every", 20, "--lora", 4]
    prompts = options.out / "adapted_prompt.txt"
    prompts.write_text("The library\n")
    for weights, tolerance in (("plain", LOSS_TOLERANCE), ("int8", INT8_TOLERANCE)):
        adapter = options.out / f"{folder.name}_lora_{weights}"
        packing = ["--weights", weights]
        told = run(options.finetune, "--out", adapter, *arguments, *packing).stdout.decode()
        if not re.search(r"; \d+ parameters, \d+ of them trained\n", told):
            sys.exit(f"it was not told how many parameters are trained: {told}")
        losses = held_out_losses(adapter)
        if not losses[-1] < losses[0] - 0.4:
            sys.exit(f"the adapter of {folder.name}, {weights}, has not learned: {losses}")
        if (adapter / "config.json").exists():
            sys.exit(f"{adapter} has the config.json of a model")

        broken = options.out / f"{folder.name}_lora_{weights}_broken"
        run(options.finetune, "--out", broken, *arguments, *packing, "--stop-after", 25)
        run(options.finetune, "--out", broken, "--resume", "--checkpointing")
        for name in ("adapter_model.safetensors", "adapter_config.json", "loss.csv"):
            expect(f"{name} of a resumed run", (broken / name).read_bytes(),
                   (adapter / name).read_bytes())  # fmt: skip

        model = ["--model", folder, *packing, "--greedy"]
        prompt = ["--prompt", "The library", "--count", 40]
        text = run(options.generate, *model, "--adapter", adapter, *prompt).stdout.decode()
        if text == run(options.generate, *model, *prompt).stdout.decode():
            sys.exit(f"the adapter of {folder.name}, {weights}, does not change the text")
        served = run(options.serve, *model, "--adapter", adapter, "--prompts", prompts, "--tokens", 40)
        expect(f"the answer of serve, {weights}", served.stdout.decode(), f"==> 1 <==\n{text}")
        if peft is None:
            continue
        by_python = held_out_loss(folder, tokenizer, options.text, 32, adapter)
        expect_close(f"the loss of {adapter}", losses[-1], by_python, tolerance)
        if weights == "plain":
            check_answers(options.generate, folder, tokenizer, adapter)
    if folder.name == "llama":
        check_dora(options, folder, tokenizer, arguments)
    low = options.out / f"{folder.name}_lora_bfloat16"
    run(options.finetune, "--out", low, *arguments, "--weights", "int8", "--dtype", "bfloat16")
    expect_close("the loss of int8 with bfloat16", held_out_losses(low)[-1], losses[-1], 0.02)


def check_dora(options, folder: Path, tokenizer, arguments: list) -> None:
    """An adapter of some Linears, with the lengths of their rows."""
    adapter = options.out / f"{folder.name}_dora"
    given = [*arguments, "--dora", "--lora-targets", "fc_q,fc_v"]
    run(options.finetune, "--out", adapter, *given, "--stop-after", 25)
    run(options.finetune, "--out", adapter, "--resume")
    config = json.loads((adapter / "adapter_config.json").read_text())
    expect("use_dora", config["use_dora"], True)
    targets = {name.rpartition(".")[2] for name in config["target_modules"]}
    expect("target_modules", targets, {"q_proj", "v_proj"})
    if peft is not None:
        by_python = held_out_loss(folder, tokenizer, options.text, 32, adapter)
        expect_close(f"the loss of {adapter}", held_out_losses(adapter)[-1], by_python, LOSS_TOLERANCE)


def check_refusals(options, llama: Path) -> None:
    out = options.out
    bare = out / "bare"
    shutil.copytree(llama, bare, ignore=shutil.ignore_patterns("tokenizer*"))
    bert = transformers.BertConfig(
        vocab_size=400, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16,
    )  # fmt: skip
    transformers.BertModel(bert).save_pretrained(out / "bert")
    shutil.copy(llama / "tokenizer.json", out / "bert")
    short = out / "short.txt"
    short.write_text("A few words. " * 10)
    tuned = out / "llama_tuned"
    missing = out / "missing"
    text = ["--text", options.text]
    new = ["--out", out / "new"]
    adapter = out / "llama_lora_plain"
    other = out / "other"
    shutil.copytree(llama, other)
    transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(llama)
    ).save_pretrained(other)
    model = ["--model", llama]
    generate, finetune = options.generate, options.finetune
    refusals = [
        (generate, ["--model", missing],
         f"cannot read {missing}: it has neither model.json nor config.json"),
        (generate, ["--model", bare, "--prompt", "Text"],
         f"{bare} has no tokenizer.json, which --prompt needs: give the prompt's token ids with "
         "--tokens"),
        (generate, ["--model", out / "bert"],
         f"load_pretrained: {out}/bert/config.json must describe a Decoder; it describes a "
         "TextEncoder"),
        (generate, ["--model", adapter],
         f"cannot read {adapter}: it has an adapter: give it with --adapter, and its model with "
         "--model"),
        (generate, [*model, "--length-penalty", 2], "--length-penalty needs --beams"),
        (generate, [*model, "--early-stopping", "never"], "--early-stopping needs --beams"),
        (generate, [*model, "--beams", 2, "--top-k", 3],
         "--beams cannot be combined with --greedy, --temperature, --top-k, --top-p and --min-p: no "
         "token is drawn"),
        (generate, [*model, "--adapter", missing],
         f"load_adapter: folder ({missing}) must exist"),
        (generate, [*model, "--tokens", "1 2x"],
         "tokens must be whole numbers from 0 to 399, not 2x"),
        (generate, [*model, "--tokens", "1 400"],
         "tokens must be whole numbers from 0 to 399, not 400"),
        (finetune, [*text, *new], "give a folder in Hugging Face's format with --model"),
        (finetune, [*model, *new], "give the text to train on with --text"),
        (finetune, ["--model", missing, *text, *new],
         f"cannot read {missing}/config.json: No such file or directory"),
        (finetune, ["--model", bare, *text, *new],
         f"{bare} has no tokenizer.json, which --text needs: save the model's tokenizer there from "
         "Python"),
        (finetune, ["--model", out / "bert", *text, *new],
         f"load_pretrained: {out}/bert/config.json must describe a Decoder; it describes a "
         "TextEncoder"),
        (finetune, [*model, "--text", missing, *new],
         f"cannot read {missing}: No such file or directory"),
        (finetune, [*model, "--text", short, *new],
         re.compile(r"the text's held-out tenth, \d+ tokens, must be longer than the context "
                    r"\(200\)")),
        (finetune, [*model, *text, *new, "--context", 201],
         "--context (201) must be at most 200, as the model's"),
        (finetune, [*model, *text, "--out", tuned],
         f"{tuned} holds a run already: --resume goes on with it, --out takes another"),
        (finetune, [*model, *text, "--out", llama],
         f"{llama} holds a model already: give another folder with --out"),
        (finetune, [*model, *text, *new, "--lora-alpha", 8], "--lora-alpha needs --lora"),
        (finetune, [*model, *text, *new, "--lora-targets", "fc_q"], "--lora-targets needs --lora"),
        (finetune, [*model, *text, *new, "--dora"], "--dora needs --lora"),
        (finetune, [*model, *text, *new, "--weights", "int8"],
         "--weights int8 needs --lora: packed weights cannot be trained"),
        (finetune, ["--model", out / "bert", *text, *new, "--lora", 4],
         f"load_pretrained: {out}/bert/config.json must describe a Decoder; it describes a "
         "TextEncoder"),
        (finetune, ["--out", tuned, "--resume", "--lora", 4],
         f"--lora (4) must be left out, as when the run in {tuned} began"),
        (finetune, ["--out", adapter, "--resume", "--lora", 8],
         f"--lora (8) must be 4, as when the run in {adapter} began"),
        (finetune, ["--out", adapter, "--resume", "--model", other],
         f"the model's weights are no longer what they were when the run in {adapter} began"),
        (finetune, [*model, *text, "--out", adapter],
         f"{adapter} holds a run already: --resume goes on with it, --out takes another"),
        (finetune, ["--out", tuned, "--resume", "--steps", 70],
         f"--steps (70) must be 60, as when the run in {tuned} began"),
        (finetune, ["--out", tuned, "--resume", "--model", missing],
         f"{missing} is gone: give the model's new place with --model"),
    ]  # fmt: skip
    for program, arguments, message in refusals:
        done = run(program, *arguments, status=1)
        actual = done.stderr.decode()
        if isinstance(message, re.Pattern):
            if not message.search(actual):
                sys.exit(f"{actual!r} must match {message.pattern}")
        else:
            expect(f"refusal of {arguments}", actual, f"{program.name}: {message}\n")
    if (out / "new").exists():
        sys.exit("a refused run left its folder")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    for name in ("--generate", "--serve", "--finetune", "--text", "--out"):
        parser.add_argument(name, type=Path, required=True)
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    tokenizer = make_tokenizer(options.text)
    folders = make_models(options.out, tokenizer)
    for folder in folders.values():
        check_answers(options.generate, folder, tokenizer)
        check_serve(options, folder, tokenizer)
    for name in ("llama", "gpt2"):
        check_finetune(options, folders[name], tokenizer)
        check_lora(options, folders[name], tokenizer)
    check_left_out(options, folders["llama"])
    check_settings(options, folders["llama"], tokenizer)
    check_texts(options, folders["llama"], tokenizer)
    check_beams(options.generate, folders["llama"])
    check_ends(options.generate, folders["llama"])
    check_context(options.generate, folders["gpt2"])
    check_dtypes(options.generate, folders["llama"], options.out)
    check_refusals(options, folders["llama"])
    print("generate, serve and finetune do as transformers")


if __name__ == "__main__":
    main()
