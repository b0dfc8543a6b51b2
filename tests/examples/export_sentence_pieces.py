# SPDX-License-Identifier: BSD-3-Clause
"""Writes folders with models of SentencePiece and what transformers computes with them, for the C++
tests.

    export_sentence_pieces.py --out FOLDER

FOLDER/NAME is a folder as Hugging Face has them, without tokenizer.json, of a model that is trained on
random text. FOLDER/NAME.json is the tokenizer.json that transformers makes of it. FOLDER/NAME.cases and
FOLDER/NAME.pairs are as export_tokenizers.py describes them.
"""

import io
import os
import sys
from pathlib import Path
from typing import List

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent))
import export_tokenizers as tokenizers_of  # noqa: E402


try:
    import google.protobuf  # noqa: F401
    import sentencepiece
    import transformers
except ImportError as error:
    tokenizers_of.fail(
        f"cannot import {error.name}: install it with "
        f"'{sys.executable} -m pip install sentencepiece protobuf transformers'"
    )

UNIGRAM = {"model_type": "unigram", "vocab_size": 2600}
BPE = {
    "model_type": "bpe",
    "vocab_size": 4000,
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}
OF_T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
OF_GEMMA = {
    "add_dummy_prefix": False,
    "pad_id": 0,
    "eos_id": 1,
    "bos_id": 2,
    "unk_id": 3,
    "pad_piece": "<pad>",
    "bos_piece": "<bos>",
    "eos_piece": "<eos>",
    "user_defined_symbols": ["<mask>", "\n\n\n", "<start_of_turn>", "   "],
}
MASK = {
    "__type": "AddedToken",
    "content": "<mask>",
    "lstrip": True,
    "rstrip": False,
    "normalized": False,
    "single_word": False,
}

# Name: the file of the model, how it is trained, the fields of tokenizer_config.json.
FOLDERS = {
    "t5": ("spiece.model", {**UNIGRAM, **OF_T5}, {"tokenizer_class": "T5Tokenizer"}),
    "t5_few_extra_ids": (
        "spiece.model",
        {**UNIGRAM, **OF_T5, "normalization_rule_name": "nmt_nfkc_cf"},
        {"tokenizer_class": "T5TokenizerFast", "extra_ids": 3, "eos_token": "</s>"},
    ),
    "xlm_roberta": (
        "sentencepiece.bpe.model",
        UNIGRAM,
        {"tokenizer_class": "XLMRobertaTokenizer", "mask_token": MASK},
    ),
    "llama": (
        "tokenizer.model",
        BPE,
        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False},
    ),
    "llama_legacy": (
        "tokenizer.model",
        BPE,
        {"tokenizer_class": "LlamaTokenizer", "legacy": True, "add_eos_token": True},
    ),
    "llama_without_space": (
        "tokenizer.model",
        BPE,
        {"tokenizer_class": "LlamaTokenizerFast", "add_prefix_space": False, "add_bos_token": True},
    ),
    "gemma": (
        "tokenizer.model",
        {**BPE, **OF_GEMMA},
        {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "mask_token": "<mask>"},
    ),
}


def train(corpus: List[str], options: dict) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text.replace("\0", "") for text in corpus]),
        model_writer=model,
        character_coverage=0.98,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return model.getvalue()


def write_all(folder: Path) -> None:
    texts = tokenizers_of.Texts(seed=3)
    corpus = texts.corpus()
    hard = [texts.text() for _ in range(tokenizers_of.TEXTS)]
    for seed, (name, (file, options, config)) in enumerate(FOLDERS.items()):
        (folder / name).mkdir()
        (folder / name / file).write_bytes(train(corpus, options))
        tokenizers_of.write_json(folder / name / "tokenizer_config.json", config)
        class_name = config["tokenizer_class"].replace("Fast", "")
        tokenizer = getattr(transformers, class_name).from_pretrained(folder / name)
        backend = tokenizer.backend_tokenizer
        (folder / f"{name}.json").write_text(backend.to_str(), encoding="utf-8")
        tokenizers_of.write_cases(folder, name, backend, hard, seed)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    tokenizers_of.main(__doc__, write_all)
