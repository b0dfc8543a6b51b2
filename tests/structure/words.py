#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Fails if a word stands in src where the glossary of CONTRIBUTING.md has another one for it.

    words.py ROOT

Also fails if the glossary has a word that src does not use. A banned word is found in comments and
as a word of a name: "run" in run_count, kRuns and PagedRun, but not in return.
"""

import pathlib
import re
import sys

# A word, where it is banned, and the glossary's words for what it would say there.
BANNED = [
    ("piece", "core cpu attend", "run, part"),
    ("stretch", "core cpu attend", "run"),
    ("segment", "core cpu attend", "run"),
    ("chunk", "core cpu attend", "block"),
    ("tile", "cpu/decode cpu/layers", "strip, cell, panel"),
    ("register tile", "cpu", "micro-tile"),
    ("run", "cpu/decode", "split"),
    ("part", "cpu/isa cpu/layers", "block, split, run"),
    ("group", "cpu/shown_keys.h cpu/shown_keys.cpp cpu/isa/philox.h cpu/isa/scores.h", "block"),
    ("visibility", "cpu", "shown"),
    # Names, except those of the public function and of C++.
    (re.compile(r"\b(?!quantize_int8\b|u?int8_t\b)(?:\w+int8\w*|int8\w+)"), "core attend modules", "quantized"),
]


def pattern(word):
    first, rest = word[0], word[1:].replace(" ", r"[\s/]+")
    return re.compile(rf"(?:(?<![A-Za-z])[{first}{first.upper()}]|(?<=[a-z]){first.upper()}){rest}"
                      r"(?:e?s)?(?![a-z]|_registers)")  # has_tile_registers is a processor's


def sources(root, names="."):
    for name in names.split():
        path = root / "src" / name
        yield from [path] if path.is_file() else sorted(
            file for file in path.rglob("*") if file.suffix in (".h", ".cpp"))


def glossary(root):
    text = (root / "CONTRIBUTING.md").read_text().split("\n## Glossary\n", 1)[1]
    return re.findall(r"^\| \*\*(.+?)\*\* \|", text.split("\n## ", 1)[0], flags=re.MULTILINE)


def faults(root):
    words = glossary(root)
    text = "\n".join(path.read_text() for path in sources(root))
    for word in words:
        if not pattern(word).search(text):
            yield f"CONTRIBUTING.md: src does not use the glossary's word {word}"
    for banned, folders, use in BANNED:
        missing = [word for word in use.split(", ") if word not in words]
        if missing:
            yield f"words.py: the glossary does not have {', '.join(missing)}"
        search = pattern(banned) if isinstance(banned, str) else banned
        for path in sources(root, folders):
            content = path.read_text()
            for found in search.finditer(content):
                line = content.count("\n", 0, found.start()) + 1
                yield f"{path.relative_to(root)}:{line}: {found[0]}: use {use.replace(', ', ' or ')}"


def main():
    found = list(faults(pathlib.Path(sys.argv[1])))
    print("\n".join(found))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
